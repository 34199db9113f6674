"""Configs of published FLUX.2 klein checkpoints.

Source: black-forest-labs/FLUX.2-klein-4B and FLUX.2-klein-9B. The base models have the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN3_4B, QWEN3_8B
from models.vae.published import FLUX_2

TRANSFORMER: Mapping[str, Any] = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
"""FLUX.2 transformer fields that differ from diffusers' defaults (`Flux2Config`)."""

KLEIN_4B: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN3_4B,
    "vae": FLUX_2,
}
KLEIN_9B: Mapping[str, Mapping[str, Any]] = {
    "transformer": {
        **TRANSFORMER,
        "num_layers": 8,
        "num_single_layers": 24,
        "num_attention_heads": 32,
        "joint_attention_dim": 12288,
    },
    "text_encoder": QWEN3_8B,
    "vae": FLUX_2,
}
