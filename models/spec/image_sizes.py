"""Sizes that an image is scaled to."""

from __future__ import annotations

import math

MULTIPLE_PX = 32
"""Multiples that sides of an area are rounded to."""


def within_pixels(size: tuple[int, int], most: int | None) -> tuple[int, int]:
    """Return a size of about the same shape and at most so many pixels.

    Args:
        size: width and height.
        most: None: any number.

    Source: diffusers pipelines/flux2/image_processor.py, _resize_to_target_area.
    """
    width, height = size
    if most is None or width * height <= most:
        return size
    scale = math.sqrt(most / (width * height))
    return int(width * scale), int(height * scale)


def size_of_area(size: tuple[int, int], area: int) -> tuple[int, int]:
    """Return a size of about so many pixels and about the same shape; 0 where that is too narrow.

    Args:
        size: width and height.

    Source: diffusers pipeline_qwenimage_edit.py, calculate_dimensions.
    """
    ratio = size[0] / size[1]
    width = math.sqrt(area * ratio)
    return _rounded(width), _rounded(width / ratio)


def longest_side(pixels: int, ratio: int, multiple: int) -> int:
    """Return the longest side of an image of so many pixels.

    Args:
        ratio: most that it is as long as wide.
        multiple: of pixels that sides are.
    """
    return math.isqrt(pixels * ratio) // multiple * multiple


def _rounded(side: float) -> int:
    return round(side / MULTIPLE_PX) * MULTIPLE_PX
