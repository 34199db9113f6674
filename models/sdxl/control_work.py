"""Work of a ControlNet in a step, as a share of its UNet's: what the queue prices controls by.

Counted in products of weights, each as often as its level has positions. Attention's products of
activations, which both have in about the same share, are left out.
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
    {"kinds", "picture", "time_embedding", "add_embedding", "out", "mid_out"},
)
"""Layers that run once for an image or a step, whatever its size; and outputs, which are little."""
OF_TEXT = ("attn2.k.kernel", "attn2.v.kernel", "time_emb_proj.kernel")
"""Layers that see the text or the time."""


def share_of(config: ControlNetConfig, unet: UNetConfig) -> float:
    """Return the work of a step of a ControlNet over that of its UNet's."""
    levels = len(unet.block_out_channels)
    control = _work(abstract_module(ControlNet, config), levels)
    return control / _work(abstract_module(UNet, unet), levels)


def _work(network: nnx.Module, levels: int) -> float:
    """Return the products of a step for each latent of the largest level."""
    return sum(
        leaf.size * _positions(path, levels)
        for path, leaf in flat_parameters(network).items()
        if path.endswith("kernel")
    )


def _positions(path: str, levels: int) -> float:
    """Return how often a kernel runs, for each latent of the largest level."""
    names = path.split(".")
    if names[0] in LEFT_OUT or path.endswith(OF_TEXT):
        return 0.0
    level = {"down_blocks": 0, "up_blocks": levels - 1, "mid_block": levels - 1}.get(names[0], 0)
    if names[0] in ("down_blocks", "up_blocks"):
        level = abs(level - int(names[1]))
    moves = {"downsample": 1, "upsample": -1}
    return float(4.0 ** -(level + sum(moves.get(name, 0) for name in names)))
