"""Configs of published Z-Image checkpoints: the fields that define the networks' shapes.

Source: Tongyi-MAI/Z-Image-Turbo and Tongyi-MAI/Z-Image, which differ in the schedule's shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.text.published import QWEN3_4B
from models.vae.published import FLUX_1

TRANSFORMER: Mapping[str, Any] = {"axes_lens": [1536, 512, 512]}
"""Z-Image transformer fields that differ from diffusers' defaults (`ZImageConfig`)."""

Z_IMAGE: Mapping[str, Mapping[str, Any]] = {
    "transformer": TRANSFORMER,
    "text_encoder": QWEN3_4B,
    "vae": FLUX_1,
}
