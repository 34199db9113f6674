"""Share of a value or operation that one device holds under a layout."""

from __future__ import annotations

import math

from models.parallel.axis_rules import Layout, MeshAxes
from workers.jaxpr.operations import Pairs


def scaled(axes: Pairs, rows: int) -> Pairs:
    """Multiply the size of the batch axis by the number of rows."""
    return tuple((axis, size * rows if axis == "batch" else size) for axis, size in axes)


def split_axes(layout: Layout, axes: Pairs) -> dict[str, MeshAxes]:
    """Return the mesh axes that split each logical axis; sequences are padded to equal shares."""
    names = tuple(axis for axis, _ in axes)
    sizes = tuple(
        size + -size % layout.size(axis) if axis == "tokens" else size for axis, size in axes
    )
    return dict(zip(names, layout.split(names, sizes), strict=True))


def share(layout: Layout, axes: Pairs) -> float:
    """Return the share of an array on the fullest device; 1 if nothing is split."""
    parts = split_axes(layout, axes)
    counts = [(size, layout.devices(parts[axis])) for axis, size in axes]
    return math.prod(math.ceil(size / count) / size for size, count in counts)
