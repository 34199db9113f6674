"""Spec kinds of edit checkpoints, for one image and for several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.qwenimage.edit.prompts import AREA_PX
from models.qwenimage.request import FIELDS
from models.qwenimage.spec import Kind
from models.vae.references import IMAGE, REFERENCE_IMAGES
from models.vision.qwen_patches import MAX_RATIO

MAX_EDIT_RATIO = MAX_RATIO * 3 // 4
"""Maximum aspect ratio of an image; the short side is rounded to 32 px before encoding."""


def _reading(*images: str) -> Mapping[str, Any]:
    """Return the spec's fields that describe how input images of an edit are scaled."""
    return {
        "sized_area_px": AREA_PX,
        "most_ratio": dict.fromkeys(images, MAX_EDIT_RATIO),
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
    FIELDS - {"mask_image", "strength"} | {REFERENCE_IMAGES},
    ("image-to-image",),
    (),
    {
        **_reading(IMAGE, REFERENCE_IMAGES),
        "sized_by_image": ("image-to-image",),
        "sized_by_last": True,
    },
    references=3,
)
