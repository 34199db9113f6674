"""The published Z-Image checkpoints, as data: what their config files say of the networks' shapes.

Source: Tongyi-MAI/Z-Image-Turbo and Tongyi-MAI/Z-Image, which differ in the schedule's shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN3_4B

TRANSFORMER: Mapping[str, Any] = {
    "all_patch_size": [2],
    "all_f_patch_size": [1],
    "in_channels": 16,
    "dim": 3840,
    "n_layers": 30,
    "n_refiner_layers": 2,
    "n_heads": 30,
    "n_kv_heads": 30,
    "norm_eps": 1e-05,
    "qk_norm": True,
    "cap_feat_dim": 2560,
    "rope_theta": 256.0,
    "t_scale": 1000.0,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
}
VAE: Mapping[str, Any] = {
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

Z_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN3_4B,
    "vae": VAE,
}
