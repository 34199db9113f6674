"""The published Z-Image checkpoints, as data: what their config files say of the networks' shapes.

Source: Tongyi-MAI/Z-Image-Turbo and Tongyi-MAI/Z-Image, which differ in the schedule's shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN3_4B
from models.vae.published import FLUX_1

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

Z_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN3_4B,
    "vae": FLUX_1,
}
