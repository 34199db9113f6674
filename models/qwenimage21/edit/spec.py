"""Limits of references, and the spec fields of checkpoints that read them."""

from __future__ import annotations

from functools import partial

from models.qwenimage21.request import FIELDS
from models.qwenimage21.spec import TaskKind
from models.vae.references import IMAGE, REFERENCE_IMAGES

MAX_REFERENCES = 8
"""Maximum images in addition to `image`."""
AREA_PX = 1024 * 1024
"""Pixels to which references are scaled."""
MAX_RATIO = 100
"""Maximum aspect ratio of a reference."""
_of_images = partial(dict.fromkeys, (IMAGE, REFERENCE_IMAGES))
EDITING = TaskKind(
    FIELDS | {IMAGE, REFERENCE_IMAGES},
    ("text-to-image", "image-to-image"),
    {
        "sized_by_image": ("image-to-image",),
        "sized_by_last": True,
        "sized_area_px": AREA_PX,
        "most_ratio": _of_images(MAX_RATIO),
        "read_pixels": _of_images(AREA_PX),
    },
    MAX_REFERENCES,
)
