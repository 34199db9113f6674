"""Upscalers as front ends and workers know them. No JAX in here: the front end imports it.

An upscaler draws a finished image larger, in squares that overlap. Operators name them; a request
names one, and how many times as large a side it wants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "upscale"
"""Request field that asks for one."""
OVERLAP = 8
"""Tiles share this part of a side with their neighbours: an eighth."""
MAX_SIDE_PX = 16_383
"""Maximum side of an upscaled image: the most that WebP holds."""
BUCKET = "upscaler="
"""Beginning of the name under which a pool reports what a tile takes."""


class Upscaler(BaseModel):
    """Upscaler of finished images."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    scale: int = Field(ge=1)
    """Sides that it draws, relative to the image's; smaller scales are made of that."""
    tile: int = Field(gt=0)
    """Side of the squares that it draws an image in, in pixels of the image."""
    digest: str = ""
    """SHA-256 of its file, in hexadecimal."""


def with_defaults(asked: Mapping[str, Any], known: Mapping[str, Upscaler]) -> dict[str, Any]:
    """Return a request's field with the only name that there is, and with its upscaler's scale."""
    name = asked.get("name")
    if name is None and len(known) == 1:
        name = next(iter(known))
    scale = asked.get("scale")
    if scale is None and (one := known.get(str(name))):
        scale = one.scale
    return {"name": name, "scale": scale}


def upscaled(side: int, scale: float) -> int:
    """Return a side in pixels after upscaling."""
    return round(side * scale)


def tile_starts(side: int, tile: int, multiple: int = 1) -> list[int]:
    """Return where tiles begin along a side, so that the last one ends with it.

    Args:
        side, tile: in pixels; a shorter side is one tile.
        multiple: of which each start is a whole multiple, as side and tile have to be.
    """
    if side <= tile:
        return [0]
    overlap = tile // OVERLAP
    steps = math.ceil((side - overlap) / (tile - overlap)) - 1
    return [(side - tile) * number // steps // multiple * multiple for number in range(steps + 1)]


def tiles_of(width: int, height: int, upscaler: Upscaler) -> float:
    """Return how many whole tiles' work an image is: of one below a tile's size, a part of one."""
    tile = upscaler.tile
    count = len(tile_starts(width, tile)) * len(tile_starts(height, tile))
    return count * min(width, tile) * min(height, tile) / tile**2


def upscaler_of(request: Mapping[str, Any], known: Mapping[str, Upscaler]) -> Upscaler | None:
    """Return the upscaler that a resolved request names; None: it asks for none."""
    asked = request.get(FIELD)
    return known.get(asked["name"]) if asked else None
