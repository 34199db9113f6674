"""Images in overlapping tiles, one at a time, faded into one another.

What does not fit a device as a whole fits in tiles. The numbers are others: a tile does not see
what is outside it. They are those of diffusers, tile by tile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.vae.config import Tiling

Picture = Float[Array, "... _height _width _channels"]
"""Image or frames. What becomes of one has other sizes."""
ROWS, COLUMNS = -3, -2


class Span(NamedTuple):
    """Span of rows or columns."""

    start: int
    size: int


def in_tiles(
    apply: Callable[[Picture], Picture], picture: Picture, read: Tiling, write: Tiling
) -> Picture:
    """`apply` to each tile, and the results as one image.

    Tiles of one size run in a loop: the memory is one tile's, beside the results. At the right and
    bottom edge tiles are as small as what is left; each size is compiled by itself, nine at most.

    Args:
        read, write: the tiling of what `apply` takes and of what it makes of that.
    """
    height, width = picture.shape[ROWS], picture.shape[COLUMNS]
    if max(height, width) <= read.side:
        return apply(picture)
    rows, columns = spans(height, read), spans(width, read)
    tiles = _apply_to_tiles(apply, picture, rows, columns)
    return _blend(tiles, write)


def spans(size: int, tiling: Tiling) -> list[Span]:
    """Return where tiles lie along one side."""
    starts = range(0, size, tiling.stride)
    return [Span(start, min(tiling.side, size - start)) for start in starts]


def _apply_to_tiles(
    apply: Callable[[Picture], Picture],
    picture: Picture,
    rows: Sequence[Span],
    columns: Sequence[Span],
) -> list[list[Picture]]:
    """The results, row by row."""
    places = [(row, column) for row in rows for column in columns]
    sizes = defaultdict(list)
    for row, column in places:
        sizes[row.size, column.size].append((row, column))
    results: dict[tuple[Span, Span], Picture] = {}
    for (height, width), alike in sizes.items():

        def of_tile(start: Array, height: int = height, width: int = width) -> Picture:
            tile = jax.lax.dynamic_slice_in_dim(picture, start[0], height, ROWS)
            return apply(jax.lax.dynamic_slice_in_dim(tile, start[1], width, COLUMNS))

        starts = np.array([(row.start, column.start) for row, column in alike])
        results.update(zip(alike, jax.lax.map(of_tile, starts), strict=True))
    return [[results[row, column] for column in columns] for row in rows]


def _blend(tiles: list[list[Picture]], tiling: Tiling) -> Picture:
    """Blend each tile with the one above it, then with the one on its left, as blended so far."""
    overlap = tiling.side - tiling.stride
    above: list[Picture] = []
    bands = []
    for row in tiles:
        done: list[Picture] = []
        for number, tile in enumerate(row):
            if above:
                tile = faded_in(above[number], tile, overlap, ROWS)
            if done:
                tile = faded_in(done[-1], tile, overlap, COLUMNS)
            done.append(tile)
        cut = [tile[..., : tiling.stride, : tiling.stride, :] for tile in done]
        bands.append(jnp.concatenate(cut, axis=COLUMNS))
        above = done
    return jnp.concatenate(bands, axis=ROWS)


def faded_in(before: Picture, tile: Picture, overlap: int, axis: int) -> Picture:
    """The tile, its beginning turning from the end of `before` into its own, position by position.

    Args:
        overlap: positions that the two share; fewer where one of them is shorter.
    """
    overlap = min(before.shape[axis], tile.shape[axis], overlap)
    if not overlap:
        return tile
    own = np.expand_dims(np.arange(overlap) / overlap, tuple(range(axis + 1, 0)))
    end = jax.lax.slice_in_dim(before, before.shape[axis] - overlap, None, axis=axis)
    start, rest = jnp.split(tile, [overlap], axis=axis)
    faded = end * (1 - own).astype(tile.dtype) + start * own.astype(tile.dtype)
    return jnp.concatenate([faded, rest], axis=axis)
