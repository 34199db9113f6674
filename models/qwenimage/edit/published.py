"""The published checkpoints of edits, as data: what their config files say beside Qwen-Image's.

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
"""Processor of images for the text encoder."""
