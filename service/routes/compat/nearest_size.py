"""Nearest size of a model to one that another vendor's API names."""

from __future__ import annotations

import math

from models.spec.model_spec import ModelSpec
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings


def nearest(spec: ModelSpec, limits: LimitSettings, width: int, height: int) -> tuple[int, int]:
    """Return the supported size that is closest in aspect ratio, then in area."""
    if spec.sizes.mode == "any":
        return _within(bounds_of(spec.limits, limits), width, height)

    def distance(size: tuple[int, int]) -> tuple[float, float]:
        shape = math.log(size[0] / size[1]) - math.log(width / height)
        area = math.log(size[0] * size[1]) - math.log(width * height)
        return abs(shape), abs(area)

    return min(((size.width, size.height) for size in spec.sizes.listed), key=distance)


def _within(bounds: Bounds, width: int, height: int) -> tuple[int, int]:
    """Return the closest image size within the bounds, with the same aspect ratio if possible."""
    longest = bounds.max_side_px / max(width, height)
    shrink = min(1.0, math.sqrt(bounds.max_pixels / (width * height)), longest)
    grow = max(1.0, bounds.min_side_px / (shrink * min(width, height)))
    multiple = bounds.size_multiple_px
    least = multiple * math.ceil(bounds.min_side_px / multiple)

    def side(length: int) -> int:
        scaled = int(length * shrink * grow + 1e-6)  # rounding may yield less than an integer
        return max(least, min(scaled, bounds.max_side_px) // multiple * multiple)

    wide, high = side(width), side(height)
    if wide * high > bounds.max_pixels:  # the aspect ratio does not fit the bounds
        if wide > high:
            wide = max(least, bounds.max_pixels // high // multiple * multiple)
        else:
            high = max(least, bounds.max_pixels // wide // multiple * multiple)
    return wide, high
