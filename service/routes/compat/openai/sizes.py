"""Image sizes in OpenAI's format: `1024x1024`, or `auto`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings

AUTO = "auto"
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)


def sides_of(size: str | None) -> dict[str, int]:
    """Parse a size to width and height; empty for `auto`. Raises: Invalid."""
    if size is None or size == AUTO:
        return {}
    match = _SIZE.fullmatch(size)
    if not match:
        raise Invalid([FieldError("size", "write WIDTHxHEIGHT, such as 1024x1024, or auto")])
    return {"width": int(match[1]), "height": int(match[2])}


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
    """Return the closest size within the bounds, with the same aspect ratio if possible."""
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


@contextmanager
def naming_sizes(spec: ModelSpec, limits: LimitSettings, size: str | None) -> Iterator[None]:
    """Add the closest supported size to errors about `size` raised inside. Raises: Invalid."""
    try:
        yield
    except Invalid as problem:
        messages = [error.message for error in problem.errors if error.field == "size"]
        sides = sides_of(size) if messages else {}
        if not sides or not all(sides.values()):
            raise
        wide, high = nearest(spec, limits, sides["width"], sides["height"])
        default_size = f"{spec.defaults.get('width', wide)}x{spec.defaults.get('height', high)}"
        message = (
            f"{'; '.join(messages)}; the nearest is {wide}x{high}, the model's own {default_size}"
        )
        others = [error for error in problem.errors if error.field != "size"]
        raise Invalid([FieldError("size", message), *others], code=problem.code) from problem
