"""Configs of published Qwen-Image-Edit checkpoints: differences from Qwen-Image.

Source: Qwen/Qwen-Image-Edit, and its 2509 and 2511.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.qwenimage.published import QWEN_IMAGE, TRANSFORMER

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
"""Image processor of the text encoder."""
