"""Images in overlapping tiles, processed one at a time and blended.

An image too large for a device's memory fits in tiles. The results differ: a tile does not depend
on pixels outside it. They equal those of diffusers' tiles.
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

ImageArray = Float[Array, "... _height _width _channels"]
"""Image or frames; a function may return other sizes."""
ROWS, COLUMNS = -3, -2


class Span(NamedTuple):
    """Range of rows or columns that one tile of an image covers."""

    start: int
    size: int


def in_tiles(
    apply: Callable[[ImageArray], ImageArray], image: ImageArray, read: Tiling, write: Tiling
) -> ImageArray:
    """Apply a function to each tile, and blend the results into one image.

    Tiles of one size run in a loop: memory is one tile's in addition to the results. Tiles at the
    right and bottom edge are smaller; each size is compiled separately, nine at most.

    Args:
        read, write: tiling of the inputs and of the results of `apply`.
    """
    height, width = image.shape[ROWS], image.shape[COLUMNS]
    if max(height, width) <= read.side:
        return apply(image)
    rows, columns = spans(height, read), spans(width, read)
    tiles = _apply_to_tiles(apply, image, rows, columns)
    return _blend(tiles, write)


def spans(size: int, tiling: Tiling) -> list[Span]:
    """Return the ranges of the tiles along one side of an image."""
    starts = range(0, size, tiling.stride)
    return [Span(start, min(tiling.side, size - start)) for start in starts]


def _apply_to_tiles(
    apply: Callable[[ImageArray], ImageArray],
    image: ImageArray,
    rows: Sequence[Span],
    columns: Sequence[Span],
) -> list[list[ImageArray]]:
    """Apply the function to all tiles of an image, row by row; return the results."""
    places = [(row, column) for row in rows for column in columns]
    sizes = defaultdict(list)
    for row, column in places:
        sizes[row.size, column.size].append((row, column))
    results: dict[tuple[Span, Span], ImageArray] = {}
    for (height, width), places_of_size in sizes.items():

        def of_tile(start: Array, height: int = height, width: int = width) -> ImageArray:
            tile = jax.lax.dynamic_slice_in_dim(image, start[0], height, ROWS)
            return apply(jax.lax.dynamic_slice_in_dim(tile, start[1], width, COLUMNS))

        starts = np.array([(row.start, column.start) for row, column in places_of_size])
        results.update(zip(places_of_size, jax.lax.map(of_tile, starts), strict=True))
    return [[results[row, column] for column in columns] for row in rows]


def _blend(tiles: list[list[ImageArray]], tiling: Tiling) -> ImageArray:
    """Blend each tile with the tile above it, then with the blended tile on its left."""
    overlap = tiling.side - tiling.stride
    above: list[ImageArray] = []
    bands = []
    for row in tiles:
        done: list[ImageArray] = []
        for number, tile in enumerate(row):
            if above:
                tile = blend_edge(above[number], tile, overlap, ROWS)
            if done:
                tile = blend_edge(done[-1], tile, overlap, COLUMNS)
            done.append(tile)
        cut = [tile[..., : tiling.stride, : tiling.stride, :] for tile in done]
        bands.append(jnp.concatenate(cut, axis=COLUMNS))
        above = done
    return jnp.concatenate(bands, axis=ROWS)


def blend_edge(before: ImageArray, tile: ImageArray, overlap: int, axis: int) -> ImageArray:
    """Blend the beginning of a tile with the end of `before`, linearly by position.

    Args:
        overlap: positions that both share; fewer if one of them is shorter.
    """
    overlap = min(before.shape[axis], tile.shape[axis], overlap)
    if not overlap:
        return tile
    weight = np.expand_dims(np.arange(overlap) / overlap, tuple(range(axis + 1, 0)))
    end = jax.lax.slice_in_dim(before, before.shape[axis] - overlap, None, axis=axis)
    start, rest = jnp.split(tile, [overlap], axis=axis)
    faded = end * (1 - weight).astype(tile.dtype) + start * weight.astype(tile.dtype)
    return jnp.concatenate([faded, rest], axis=axis)
