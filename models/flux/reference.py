"""Preprocessing of Kontext's reference image: resizes to one of the training sizes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32
from PIL import Image

from models.interface.images import open_image, pixels_of
from models.spec.request import RequestError

SIZES = (
    *((672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184)),
    *((944, 1104), (1024, 1024), (1104, 944)),
    *((1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688), (1568, 672)),
)
"""Training sizes as width and height. Source: diffusers pipeline_flux_kontext.py,
PREFERRED_KONTEXT_RESOLUTIONS."""

SIDE_PX = 1024
"""Side of the square size; all sizes have its number of pixels within 1.4 %."""


def read_reference(
    data: bytes, multiple: int, field: str, side_px: int = SIDE_PX
) -> Float32[np.ndarray, "height width colours"]:
    """Decode an image, and resize it to the size of `SIZES` with the nearest ratio.

    Args:
        multiple: side of a token in pixels; the image's sides are rounded down to multiples of it.
        side_px: side of the square size; the other sizes scale with it.

    Returns: pixels in [-1, 1].

    Raises: RequestError: the image cannot be decoded or is smaller than a token.
    """
    image = open_image(data, field)
    width, height = (side - side % multiple for side in image.size)
    if not width or not height:
        raise RequestError(field, f"must be at least {multiple} x {multiple} pixels")
    scaled = (side * side_px // SIDE_PX for side in nearest_size(width, height))
    width, height = (max(multiple, side - side % multiple) for side in scaled)
    return pixels_of(image.resize((width, height), Image.Resampling.LANCZOS))


def nearest_size(width: int, height: int) -> tuple[int, int]:
    """Return the size of `SIZES` with the nearest ratio; the narrower of two equally near ones."""
    ratio = width / height
    return min(SIZES, key=lambda size: (abs(ratio - size[0] / size[1]), size))
