"""Config values of published autoencoders of images and single frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLUX_1: Mapping[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 16,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
"""Autoencoder with 16 latent channels, the first with that many."""

FLUX_2: Mapping[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "latent_channels": 32,
    "norm_num_groups": 32,
    "sample_size": 1024,
    "use_quant_conv": True,
    "use_post_quant_conv": True,
    "batch_norm_eps": 0.0001,
    "patch_size": [2, 2],
}
"""Autoencoder with 32 latent channels and packed latents normalized by channel."""

WAN_2_1: Mapping[str, Any] = {
    "base_dim": 96,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
}
"""Video autoencoder of Wan 2.1."""
QWEN_IMAGE: Mapping[str, Any] = {**WAN_2_1, "dropout": 0.0, "input_channels": 3}
"""The same network, with other weights, for images: Qwen-Image and Krea 2."""
