"""Sizes as OpenAI's API writes them: `1024x1024`, or `auto`."""

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
    """Return width and height of a size; nothing of `auto`. Raises: Invalid."""
    if size is None or size == AUTO:
        return {}
    found = _SIZE.fullmatch(size)
    if not found:
        raise Invalid([FieldError("size", "write WIDTHxHEIGHT, such as 1024x1024, or auto")])
    return {"width": int(found[1]), "height": int(found[2])}


def nearest(spec: ModelSpec, limits: LimitSettings, width: int, height: int) -> tuple[int, int]:
    """Return the size that a model serves whose shape, then area, is nearest to that one."""
    if spec.sizes.mode == "any":
        return _within(bounds_of(spec.limits, limits), width, height)

    def distance(size: tuple[int, int]) -> tuple[float, float]:
        shape = math.log(size[0] / size[1]) - math.log(width / height)
        area = math.log(size[0] * size[1]) - math.log(width * height)
        return abs(shape), abs(area)

    return min(((size.width, size.height) for size in spec.sizes.listed), key=distance)


def _within(bounds: Bounds, width: int, height: int) -> tuple[int, int]:
    """Return the size in those bounds, with the sides' ratio where they allow it."""
    longest = bounds.max_side_px / max(width, height)
    shrink = min(1.0, math.sqrt(bounds.max_pixels / (width * height)), longest)
    grow = max(1.0, bounds.min_side_px / (shrink * min(width, height)))
    multiple = bounds.size_multiple_px
    least = multiple * math.ceil(bounds.min_side_px / multiple)

    def side(length: int) -> int:
        wanted = int(length * shrink * grow + 1e-6)  # a float of a whole number may lie below it
        return max(least, min(wanted, bounds.max_side_px) // multiple * multiple)

    wide, high = side(width), side(height)
    if wide * high > bounds.max_pixels:  # a shape too long for the bounds
        if wide > high:
            wide = max(least, bounds.max_pixels // high // multiple * multiple)
        else:
            high = max(least, bounds.max_pixels // wide // multiple * multiple)
    return wide, high


@contextmanager
def naming_sizes(spec: ModelSpec, limits: LimitSettings, size: str | None) -> Iterator[None]:
    """Name sizes that the model serves in an error about this one. Raises: Invalid."""
    try:
        yield
    except Invalid as problem:
        wrong = [error.message for error in problem.errors if error.field == "size"]
        sides = sides_of(size) if wrong else {}
        if not sides or not all(sides.values()):
            raise
        wide, high = nearest(spec, limits, sides["width"], sides["height"])
        own = f"{spec.defaults.get('width', wide)}x{spec.defaults.get('height', high)}"
        said = f"{'; '.join(wrong)}; the nearest is {wide}x{high}, the model's own {own}"
        others = [error for error in problem.errors if error.field != "size"]
        raise Invalid([FieldError("size", said), *others], code=problem.code) from problem
