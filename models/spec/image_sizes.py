"""Target sizes for scaled input images."""

from __future__ import annotations

import math

MULTIPLE_PX = 32
"""Multiple to which the sides of a given area are rounded."""


def within_pixels(size: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Scale a size down to at most that many pixels, keeping its proportions.

    Args:
        size: width and height.
        most: maximum pixels; None: no maximum.

    Source: diffusers pipelines/flux2/image_processor.py, _resize_to_target_area.
    """
    width, height = size
    if most is None or width * height <= most:
        return size
    scale = math.sqrt(most / (width * height))
    return int(width * scale), int(height * scale)


def size_of_area(size: tuple[int, int], area: int) -> tuple[int, int]:
    """Scale a size to about that area, keeping its proportions; a side can round to 0.

    Args:
        size: width and height.

    Source: diffusers pipeline_qwenimage_edit.py, calculate_dimensions.
    """
    ratio = size[0] / size[1]
    width = math.sqrt(area * ratio)
    return _rounded(width), _rounded(width / ratio)


def longest_side(pixels: int, ratio: int, multiple: int) -> int:
    """Return the longest possible side of an image with that many pixels.

    Args:
        ratio: maximum ratio of the sides.
        multiple: unit of the sides in pixels.
    """
    return math.isqrt(pixels * ratio) // multiple * multiple


def _rounded(side: float) -> int:
    return round(side / MULTIPLE_PX) * MULTIPLE_PX
