"""Nearest size of a model to one that another vendor's API names."""

from __future__ import annotations

import math
from typing import Any

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings

MEGAPIXEL = 1024 * 1024
OF_IMAGE = ("match_input_image", "custom", "auto", "default")
"""Aspect ratios that leave the size to the other fields."""


def size_of_ratio(
    spec: ModelSpec, limits: LimitSettings, ratio: Any, field: str, megapixels: Any = None
) -> tuple[int, int] | None:
    """Return the supported size that is closest to an aspect ratio and an area.

    None: the ratio leaves the size to the other fields.

    Args:
        ratio: such as `16:9`.
        field: name of the ratio in the request, for errors.
        megapixels: the area. Default: that of the model's default size.

    Raises: Invalid: not a ratio.
    """
    if ratio is None or ratio in OF_IMAGE:
        return None
    sides = [_number(side) for side in ratio.split(":")] if isinstance(ratio, str) else []
    if len(sides) != 2 or not all(sides):
        raise Invalid([FieldError(field, "must be WIDTH:HEIGHT, such as 16:9")])
    default_area = math.prod(spec.defaults.get(side, 1024) for side in ("width", "height"))
    width = math.sqrt((_number(megapixels) * MEGAPIXEL or default_area) * sides[0] / sides[1])
    return nearest(spec, limits, math.ceil(width), math.ceil(width * sides[1] / sides[0]))


def _number(value: Any) -> float:
    """Return a positive number of up to eight characters; 0 if the value is not one."""
    try:
        number = float(str(value)[:8])
    except ValueError:
        return 0.0
    return number if 0.01 <= number <= 1000 else 0.0


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
