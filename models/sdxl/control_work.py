"""Cost of a ControlNet step relative to its UNet's step, used to price controls in the queue.

Counts multiplications by weights, each times the positions of its level. Attention scores are
excluded, since their share is about the same in both networks.
"""

from __future__ import annotations

from flax import nnx

from models.loading.abstract import abstract_module
from models.sdxl.config import UNetConfig
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.controlnet import ControlNet
from models.sdxl.network import UNet
from models.weights.loader import flat_parameters

LEFT_OUT = frozenset(
    {"kinds", "image_encoder", "time_embedding", "add_embedding", "out", "mid_out"},
)
"""Excluded layers: those that run once per image or step at any size, and the cheap outputs."""
OF_TEXT = ("attn2.k.kernel", "attn2.v.kernel", "time_emb_proj.kernel")
"""Layers whose input is the text or the time."""


def share_of(config: ControlNetConfig, unet: UNetConfig) -> float:
    """Return the cost of a ControlNet step divided by that of a UNet step."""
    levels = len(unet.block_out_channels)
    control = _work(abstract_module(ControlNet, config), levels)
    return control / _work(abstract_module(UNet, unet), levels)


def _work(network: nnx.Module, levels: int) -> float:
    """Return a network's multiplications in one step per latent of the largest level."""
    return sum(
        float(leaf.size) * _positions(path, levels)
        for path, leaf in flat_parameters(network).items()
        if path.endswith("kernel")
    )


def _positions(path: str, levels: int) -> float:
    """Return how often a convolution kernel is applied per latent of the largest level."""
    names = path.split(".")
    if names[0] in LEFT_OUT or path.endswith(OF_TEXT):
        return 0.0
    level = {"down_blocks": 0, "up_blocks": levels - 1, "mid_block": levels - 1}.get(names[0], 0)
    if names[0] in ("down_blocks", "up_blocks"):
        level = abs(level - int(names[1]))
    moves = {"downsample": 1, "upsample": -1}
    return float(4.0 ** -(level + sum(moves.get(name, 0) for name in names)))
