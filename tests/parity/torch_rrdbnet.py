"""RRDBNet in torch with BasicSR's structure, as the reference, and a writer of its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from models.upscale.config import RrdbConfig


def conv(features: int, out: int) -> nn.Conv2d:
    return nn.Conv2d(features, out, 3, padding=1)


class Dense(nn.Module):
    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        for number in range(1, 5):
            self.add_module(f"conv{number}", conv(features + (number - 1) * growth, growth))
        self.conv5 = conv(features + 4 * growth, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for number in range(1, 5):
            layer = getattr(self, f"conv{number}")
            parts.append(functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.conv5(torch.cat(parts, 1))


class Block(nn.Module):
    def __init__(self, features: int, growth: int) -> None:
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (Dense(features, growth) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class TorchRrdbNet(nn.Module):
    """RRDBNet with BasicSR's parameter names."""

    def __init__(self, config: RrdbConfig) -> None:
        super().__init__()
        features = config.features
        self.config = config
        self.conv_first = conv(3 * config.unshuffle**2, features)
        self.body = nn.Sequential(*(Block(features, config.growth) for _ in range(config.blocks)))
        self.conv_body = conv(features, features)
        for number in range(1, config.doublings + 1):
            self.add_module(f"conv_up{number}", conv(features, features))
        self.conv_hr = conv(features, features)
        self.conv_last = conv(features, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.conv_first(functional.pixel_unshuffle(x, self.config.unshuffle))
        x = first + self.conv_body(self.body(first))
        for number in range(1, self.config.doublings + 1):
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            x = functional.leaky_relu(getattr(self, f"conv_up{number}")(x), 0.2)
        return self.conv_last(functional.leaky_relu(self.conv_hr(x), 0.2))


def net(config: RrdbConfig, seed: int = 0) -> TorchRrdbNet:
    """Build a random network whose layers keep their input's scale."""
    torch.manual_seed(seed)
    network = TorchRrdbNet(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.normal_(std=0.02)
            else:
                nn.init.kaiming_normal_(parameter, a=0.2)
        network.conv_last.weight.mul_(0.1)
        network.conv_last.bias.fill_(0.5)
    return network


def drawn(network: TorchRrdbNet, pixels: np.ndarray) -> np.ndarray:
    """Enlarge the whole image: uint8 [height, width, 3] → float32 of 0 to 1 and beyond."""
    image = torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1)[None]
    with torch.no_grad():
        return np.asarray(network(image)[0].permute(1, 2, 0))


def write(network: TorchRrdbNet, file: Path, names: Mapping[str, str] | None = None) -> Path:
    """Write the network's arrays to a file.

    Args:
        names: replacements for parts of BasicSR's names; None keeps those names.
    """
    arrays = {}
    for key, array in network.state_dict().items():
        for part, replacement in (names or {}).items():
            key = key.replace(part, replacement)
        arrays[key] = array.contiguous()
    save_file(arrays, file)
    return file


TRUNK = {
    "conv_body": "trunk_conv",
    "body.": "RRDB_trunk.",
    "rdb": "RDB",
    "conv_up": "upconv",
    "conv_hr": "HRconv",
}
"""Names of ESRGAN's second files."""


def old_names(config: RrdbConfig) -> dict[str, str]:
    """Names of ESRGAN's first files."""
    dense = {f".conv{number}.": f".conv{number}.0." for number in range(1, 6)}
    ups = {f"conv_up{n + 1}": f"model.{3 * n + 3}" for n in range(config.doublings)}
    return {
        **dense,
        "conv_body": f"model.1.sub.{config.blocks}",
        "body.": "model.1.sub.",
        "rdb": "RDB",
        **ups,
        "conv_first": "model.0",
        "conv_hr": f"model.{3 * config.doublings + 2}",
        "conv_last": f"model.{3 * config.doublings + 4}",
    }
