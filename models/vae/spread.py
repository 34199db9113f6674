"""A picture over all devices of a slice: while it is encoded or decoded, nothing else runs there.

Convolutions exchange the edges of their shares, norms their sums; XLA writes both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations_with_replacement

from jaxtyping import Array, Shaped

from models import sharding
from models.sharding import Layout, MeshAxes, split


@contextmanager
def spread(height: int, width: int) -> Iterator[None]:
    """What is traced in here has its pictures cut one way at every size; whole without a layout.

    Args:
        height, width: of the latents, which are the smallest picture: their shares grow with it.
    """
    layout = sharding.active()
    if layout is None:
        yield
        return
    rows, columns = cut(layout, height, width)
    here = {"picture_rows": rows, "picture_columns": columns, "positions": rows + columns}
    with replace(layout, table={**layout.table, **here}).active():
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


def cut_picture(
    x: Shaped[Array, "*batch height width channels"],
) -> Shaped[Array, "*batch height width channels"]:
    """The same picture or frames, each device having its rows and columns."""
    return split(x, *(None,) * (x.ndim - 3), "picture_rows", "picture_columns", None)


def cut_positions(
    x: Shaped[Array, "*batch positions heads dim"],
) -> Shaped[Array, "*batch positions heads dim"]:
    """All positions of a picture in a row, each device having as many.

    A picture is made `whole` before it becomes that, and the row before it becomes one: the order
    in a row is none of columns. It is the smallest picture, and XLA would do no better.
    """
    return split(x, *(None,) * (x.ndim - 3), "positions", None, None)


def whole(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    """The same array, every device having all of it."""
    return split(x, *(None,) * x.ndim)
