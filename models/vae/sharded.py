"""An image over all devices of a slice: while it is encoded or decoded, nothing else runs there.

Convolutions exchange the edges of their shares, norms their sums; XLA writes both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations_with_replacement

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Shaped

from models.nn.kernels.blockwise import by_queries
from models.nn.kernels.xla import xla_kernel
from models.nn.layers.conv_strips import for_layout
from models.parallel.axis_rules import Layout, MeshAxes
from models.parallel.placement import split
from models.parallel.trace_options import trace_options

MOST_LOGITS = 32 << 20
"""Bytes of them at a time."""


@contextmanager
def spread(height: int, width: int) -> Iterator[None]:
    """Cut images one way at every size of what is traced inside; whole without a layout.

    Args:
        height, width: of the latents, which are the smallest image: their shares grow with it.
    """
    layout = trace_options().layout
    if layout is None:
        yield
        return
    rows, columns = cut(layout, height, width)
    here = {"picture_rows": rows, "picture_columns": columns, "positions": rows + columns}
    by_picture = replace(layout, table={**layout.table, **here})
    with replace(trace_options(), layout=by_picture).active():
        yield


@contextmanager
def spread_in_strips(height: int, width: int) -> Iterator[None]:
    """`spread`, and in strips where they pay."""
    with spread(height, width):
        options = trace_options()
        strips = 1
        if options.layout is not None:
            columns = options.layout.table["picture_columns"]
            strips = for_layout(options.layout, width, columns)
        with replace(options, strips=strips).active():
            yield


def cut(layout: Layout, height: int, width: int) -> tuple[MeshAxes, MeshAxes]:
    """The mesh axes that rows and columns are split over: where the largest share is smallest.

    Among equals, rows alone before columns alone before both. There are never more devices than
    rows; where they do not divide, XLA shares each size out anew and moves a few rows for it.
    """
    names = tuple(name for name in layout.table["picture_rows"] if layout.mesh.shape[name] > 1)
    ends = combinations_with_replacement(range(len(names) + 1), 2)
    ways = [(names[:first], names[last:]) for first, last in ends]

    def cost(way: tuple[MeshAxes, MeshAxes]) -> tuple[int, int, int]:
        rows, columns = map(layout.devices, way)
        share = math.ceil(height / rows) * math.ceil(width / columns)
        return share, (rows > 1) + (columns > 1), columns

    def is_wide_enough(way: tuple[MeshAxes, MeshAxes]) -> bool:
        rows, columns = map(layout.devices, way)
        return rows <= max(height, 1) and columns <= max(width, 1)

    return min(filter(is_wide_enough, ways), key=cost)


def split_image(
    x: Shaped[Array, "*batch height width channels"],
) -> Shaped[Array, "*batch height width channels"]:
    """The same image or frames, each device having its rows and columns; or its strips."""
    if trace_options().strips == 1:
        return split(x, *(None,) * (x.ndim - 3), "picture_rows", "picture_columns", None)
    return split(x, "picture_columns", "picture_rows", None, None)


def cut_positions(
    x: Shaped[Array, "*batch positions heads dim"],
) -> Shaped[Array, "*batch positions heads dim"]:
    """Split all positions of an image in a row, each device having as many.

    An image is made `whole` before it becomes that, and the row before it becomes one: the order
    in a row is none of columns. It is the smallest image, and XLA would do no better.
    """
    return split(x, *(None,) * (x.ndim - 3), "positions", None, None)


def over_positions(
    q: Float[Array, "batch q_positions heads dim"],
    k: Float[Array, "batch positions heads dim"],
    v: Float[Array, "batch positions heads dim"],
) -> Float[Array, "batch q_positions heads dim"]:
    """softmax(q kᵀ / √dim) v, queries cut by `cut_positions`, keys and values whole.

    A head is as wide as the network there, wider than any flash kernel takes; so XLA's products,
    of some queries at a time: all logits of an image of 1024² would take a GiB.
    """
    layout = trace_options().layout
    if layout is None:
        return _attend(q, k, v)
    count = q.shape[1]
    q = jnp.pad(q, ((0, 0), (0, -count % layout.size("positions")), (0, 0), (0, 0)))
    own, every = layout.spec((None, "positions", None, None), q.shape), PartitionSpec()
    found: Array = jax.shard_map(
        _attend, mesh=layout.mesh, in_specs=(own, every, every), out_specs=own, check_vma=False
    )(q, k, v)
    return found[:, :count]


def _attend(q: Array, k: Array, v: Array) -> Array:
    kernel = by_queries(xla_kernel, MOST_LOGITS)
    return kernel(q, k, v, scale=q.shape[-1] ** -0.5).values.astype(v.dtype)


def whole(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """The same array, every device having all of it."""
    return split(x, *(None,) * x.ndim)
