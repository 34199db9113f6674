"""Specs of edits for the API, beside Qwen-Image's: of one image, and of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.qwenimage.edit.prompts import AREA_PX
from models.qwenimage.request import FIELDS
from models.qwenimage.spec import Kind
from models.vae.references import FURTHER, IMAGE
from models.vision.qwen_patches import MOST_RATIO

MOST_RATIO_OF_EDITS = MOST_RATIO * 3 // 4
"""Ratio of an image's sides: the shorter is rounded to 32 px before the encoder sees it."""


def _reading(*images: str) -> Mapping[str, Any]:
    """Return the fields of a spec that say how these request fields are read."""
    return {
        "sized_area_px": AREA_PX,
        "most_ratio": dict.fromkeys(images, MOST_RATIO_OF_EDITS),
        "read_pixels": dict.fromkeys(images, AREA_PX),
    }


EDITING = Kind(
    FIELDS,
    ("image-to-image", "inpainting"),
    ("inpainting",),
    {
        **_reading(IMAGE),
        "sized_by_image": ("image-to-image", "inpainting"),
        "strength_needs": "mask_image",
    },
)
EDITING_SEVERAL = Kind(
    FIELDS - {"mask_image", "strength"} | {FURTHER},
    ("image-to-image",),
    (),
    {
        **_reading(IMAGE, FURTHER),
        "sized_by_image": ("image-to-image",),
        "sized_by_last": True,
    },
    references=3,
)
