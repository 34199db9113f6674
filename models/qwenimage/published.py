"""Configs of the published Qwen-Image checkpoint.

Source: Qwen/Qwen-Image, whose transformer has diffusers' defaults (`QwenImageConfig`) throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN2_5_VL_7B
from models.vae.published import WAN_2_1

TRANSFORMER: Mapping[str, Any] = {}
VAE: Mapping[str, Any] = {**WAN_2_1, "dropout": 0.0, "input_channels": 3}

QWEN_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN2_5_VL_7B,
    "vae": VAE,
}
