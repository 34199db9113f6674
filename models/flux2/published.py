"""The published FLUX.2 klein checkpoints, as data: what their config files say of the networks.

Source: black-forest-labs/FLUX.2-klein-4B and FLUX.2-klein-9B. The base models are of the same
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN3_4B, QWEN3_8B

TRANSFORMER: Mapping[str, Any] = {
    "patch_size": 1,
    "in_channels": 128,
    "out_channels": None,
    "num_layers": 5,
    "num_single_layers": 20,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "timestep_guidance_channels": 256,
    "mlp_ratio": 3.0,
    "axes_dims_rope": [32, 32, 32, 32],
    "rope_theta": 2000,
    "eps": 1e-06,
    "guidance_embeds": False,
}
VAE: Mapping[str, Any] = {
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
"""Autoencoder of 32 channels whose packed latents are normed by channel."""

KLEIN_4B: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN3_4B,
    "vae": VAE,
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
    "vae": VAE,
}
