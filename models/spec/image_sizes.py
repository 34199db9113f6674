"""Sizes that an image is scaled to."""

from __future__ import annotations

import math


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
