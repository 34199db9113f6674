"""The published Qwen-Image checkpoints, as data: what their config files say of the shapes.

Source: Qwen/Qwen-Image, Qwen/Qwen-Image-Edit, and its 2509 and 2511.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN2_5_VL_7B

TRANSFORMER: Mapping[str, Any] = {
    "patch_size": 2,
    "in_channels": 64,
    "out_channels": 16,
    "num_layers": 60,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 3584,
    "guidance_embeds": False,
    "axes_dims_rope": [16, 56, 56],
}
VAE: Mapping[str, Any] = {
    "base_dim": 96,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
    "dropout": 0.0,
    "input_channels": 3,
}

QWEN_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN2_5_VL_7B,
    "vae": VAE,
}
EDIT_2511: Mapping[str, Mapping[str, Any]] = {
    **QWEN_IMAGE,
    "transformer": {**TRANSFORMER, "zero_cond_t": True},
}
PROCESSOR: Mapping[str, Any] = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
"""Processor of images for the text encoder, of Edit."""
