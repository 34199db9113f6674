"""Upscalers of images and of latents in requests and model specs, with tile geometry. No JAX.

An upscaler enlarges a finished image in overlapping square tiles. Operators name upscalers; a
request names one, and the scale of the sides. An enlarger is a part of a model that enlarges its
latents between two passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FIELD = "upscale"
"""Request field of upscaling."""
OVERLAP = 8
"""Inverse of the share of a side that adjacent tiles overlap: an eighth."""
MAX_SIDE_PX = 16_383
"""Maximum side of an upscaled image, which is the limit of WebP."""
BUCKET = "upscaler="
"""Prefix of the bucket under which a worker reports the time per tile."""


class Upscaler(BaseModel):
    """Upscaler of finished images, as listed in a model's spec."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    scale: int = Field(ge=1)
    """Scale of the network's output sides; smaller scales are resized from that output."""
    tile: int = Field(gt=0)
    """Side of a tile, in pixels of the input image."""
    digest: str = ""
    """SHA-256 of the file, in hexadecimal."""


class Enlarger(BaseModel):
    """Network between the passes of hires fix, with the second pass that it was trained for."""

    model_config = ConfigDict(frozen=True)

    scale: float = Field(gt=1)
    """Scale of both sides."""
    second: Mapping[str, Any]
    """Request fields of the second pass, which override the request's."""


def with_defaults(options: Mapping[str, Any], upscalers: Mapping[str, Upscaler]) -> dict[str, Any]:
    """Return the request's `upscale` field with the only name as default, and a default scale."""
    name = options.get("name")
    if name is None and len(upscalers) == 1:
        name = next(iter(upscalers))
    scale = options.get("scale")
    if scale is None and (upscaler := upscalers.get(str(name))):
        scale = upscaler.scale
    return {"name": name, "scale": scale}


def upscaled(side: int, scale: float) -> int:
    """Return the length of an image side in pixels after upscaling."""
    return round(side * scale)


def tile_starts(side: int, tile: int, multiple: int = 1) -> list[int]:
    """Return the offsets of tiles along a side; the last tile ends with the side.

    Args:
        side, tile: in pixels; a side up to `tile` has one tile.
        multiple: unit of each start; side and tile must be whole multiples of it.
    """
    if side <= tile:
        return [0]
    overlap = tile // OVERLAP
    steps = math.ceil((side - overlap) / (tile - overlap)) - 1
    return [(side - tile) * number // steps // multiple * multiple for number in range(steps + 1)]


def tiles_of(width: int, height: int, upscaler: Upscaler) -> float:
    """Return an image's work in tiles; an image smaller than a tile counts as a fraction."""
    tile = upscaler.tile
    count = len(tile_starts(width, tile)) * len(tile_starts(height, tile))
    return count * min(width, tile) * min(height, tile) / tile**2


def upscaler_of(request: Mapping[str, Any], upscalers: Mapping[str, Upscaler]) -> Upscaler | None:
    """Return the upscaler that a resolved request names; None: no upscaling."""
    options = request.get(FIELD)
    return upscalers.get(options["name"]) if options else None
