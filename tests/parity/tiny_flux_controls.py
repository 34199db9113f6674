"""Tiny random Flux ControlNets, built by the reference library itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import FluxControlNetModel, FluxTransformer2DModel

from tests.parity.tiny import randomize

SHARED = (
    *("patch_size", "in_channels", "attention_head_dim", "num_attention_heads"),
    *("joint_attention_dim", "pooled_projection_dim", "axes_dims_rope", "guidance_embeds"),
)
"""Fields that a ControlNet takes from its transformer by default."""


def make_control(folder: Path, checkpoint: Path, seed: int, **overrides: Any) -> Any:
    """Write a ControlNet for that checkpoint's transformer, a union if it has modes; return it."""
    base = FluxTransformer2DModel.load_config(checkpoint / "transformer")
    sizes = {"num_layers": 1, "num_single_layers": 2}
    shared: dict[str, Any] = {name: base[name] for name in SHARED}
    network = randomize(FluxControlNetModel(**{**shared, **sizes, **overrides}), seed)
    network.save_pretrained(folder)
    return network
