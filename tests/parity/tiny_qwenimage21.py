"""Tiny random Qwen-Image 2.1 checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from typing import Any

from diffusers import QwenImage21Transformer2DModel

from tests.parity.tiny import Config, randomize

_TRANSFORMER: Config = {
    "in_channels": 8,
    "num_layers": 3,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
    "context_in_dim": 30,
}


def qwenimage21_transformer(seed: int, **overrides: Any) -> QwenImage21Transformer2DModel:
    """Transformer with random weights; sizes follow those that determine them."""
    config = _TRANSFORMER | overrides
    sizes = {
        "attention_head_dim": sum(config["axes_dims_rope"]),
        "out_channels": config["in_channels"],
    }
    network = randomize(QwenImage21Transformer2DModel(**(config | sizes)), seed)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            parameter.data *= 1.5  # sharper attention, so single words matter
        if name.endswith("text_norm.weight"):
            parameter.data -= 1  # the norm adds 1 to it
    return network
