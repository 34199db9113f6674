"""Autoencoder images split over all devices of a mesh slice; nothing else runs at that time.

XLA inserts the communication: convolutions exchange edges of shares, norms exchange sums.
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

MAX_LOGITS = 32 << 20
"""Maximum bytes of logits at a time."""


@contextmanager
def image_split_layout(height: int, width: int) -> Iterator[None]:
    """Split images among devices alike at every size of the code traced inside.

    Args:
        height, width: of the latents, which are the smallest image: their shares grow with it.
    """
    layout = trace_options().layout
    if layout is None:
        yield
        return
    rows, columns = choose_image_axes(layout, height, width)
    split_axes = {"image_rows": rows, "image_columns": columns, "positions": rows + columns}
    split_layout = replace(layout, table={**layout.table, **split_axes})
    with replace(trace_options(), layout=split_layout).active():
        yield


@contextmanager
def image_strip_layout(height: int, width: int) -> Iterator[None]:
    """Apply `spread`, and cut images into strips on TPUs."""
    with image_split_layout(height, width):
        options = trace_options()
        strips = 1
        if options.layout is not None:
            columns = options.layout.table["image_columns"]
            strips = for_layout(options.layout, width, columns)
        with replace(options, strips=strips).active():
            yield


def choose_image_axes(layout: Layout, height: int, width: int) -> tuple[MeshAxes, MeshAxes]:
    """Choose the mesh axes that split rows and columns, so that the largest share is smallest.

    Among equals, rows alone come before columns alone before both. There are never more devices
    than rows. If they do not divide the rows, XLA redistributes each size and moves a few rows.
    """
    names = tuple(name for name in layout.table["image_rows"] if layout.mesh.shape[name] > 1)
    ends = combinations_with_replacement(range(len(names) + 1), 2)
    candidates = [(names[:first], names[last:]) for first, last in ends]

    def cost(candidate: tuple[MeshAxes, MeshAxes]) -> tuple[int, int, int]:
        rows, columns = map(layout.devices, candidate)
        share = math.ceil(height / rows) * math.ceil(width / columns)
        return share, (rows > 1) + (columns > 1), columns

    def is_wide_enough(candidate: tuple[MeshAxes, MeshAxes]) -> bool:
        rows, columns = map(layout.devices, candidate)
        return rows <= max(height, 1) and columns <= max(width, 1)

    return min(filter(is_wide_enough, candidates), key=cost)


def split_image(
    x: Shaped[Array, "*batch height width channels"],
) -> Shaped[Array, "*batch height width channels"]:
    """Split an image or frames by rows and columns over devices; or by strips."""
    if trace_options().strips == 1:
        return split(x, *(None,) * (x.ndim - 3), "image_rows", "image_columns", None)
    return split(x, "image_columns", "image_rows", None, None)


def split_positions(
    x: Shaped[Array, "*batch positions heads dim"],
) -> Shaped[Array, "*batch positions heads dim"]:
    """Split the flattened positions of an image evenly over devices.

    Make an image `whole` before it is flattened, and the positions before they become an image: the
    order of positions is not one of columns. It is the smallest image, and XLA would do no better.
    """
    return split(x, *(None,) * (x.ndim - 3), "positions", None, None)


def attend_by_positions(
    q: Float[Array, "batch q_positions heads dim"],
    k: Float[Array, "batch positions heads dim"],
    v: Float[Array, "batch positions heads dim"],
) -> Float[Array, "batch q_positions heads dim"]:
    """Compute softmax(q kᵀ / √dim) v, with queries split by `split_positions`.

    Each device has all keys and values. The head is as wide as the network, wider than flash
    kernels support. So XLA's products run on some queries at a time: all logits of a 1024² image
    would take a GiB.
    """
    layout = trace_options().layout
    if layout is None:
        return _attend(q, k, v)
    count = q.shape[1]
    q = jnp.pad(q, ((0, 0), (0, -count % layout.size("positions")), (0, 0), (0, 0)))
    share, every = layout.spec((None, "positions", None, None), q.shape), PartitionSpec()
    output: Array = jax.shard_map(
        _attend, mesh=layout.mesh, in_specs=(share, every, every), out_specs=share, check_vma=False
    )(q, k, v)
    return output[:, :count]


def _attend(q: Array, k: Array, v: Array) -> Array:
    kernel = by_queries(xla_kernel, MAX_LOGITS)
    return kernel(q, k, v, scale=q.shape[-1] ** -0.5).values.astype(v.dtype)


def replicated(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """Replicate an array to every device."""
    return split(x, *(None,) * x.ndim)
