"""Elastic layouts: one row on all devices of a slice, or several rows on parts of it.

Switching between them moves no weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from models.parallel.axis_rules import Layout, auto_mesh
from models.parallel.mesh_axes import LENDABLE, MESH_AXES
from workers.programs.step_latency import BatchLayout


def side_by_side(layout: Layout, parts: int) -> Layout:
    """Return a layout on the same devices that runs `parts` rows at a time in parallel.

    Args:
        parts: divides the product of the `LENDABLE` axes.
    """
    sizes, left = dict(layout.mesh.shape), parts
    for axis in LENDABLE:
        given = math.gcd(left, sizes[axis])
        sizes[axis] //= given
        left //= given
    sizes["data"] *= parts
    grid = layout.mesh.devices.reshape([sizes[axis] for axis in MESH_AXES])
    return replace(layout, mesh=auto_mesh(grid))


def layouts_by_batch(
    layout: Layout, sizes: Sequence[int], stays: Callable[[Layout], bool]
) -> Mapping[BatchLayout, Layout]:
    """Map each batch layout to the mesh layout it is compiled for.

    Args:
        stays: whether another layout keeps every weight's sharding; layouts that do not are
            omitted.
    """
    layouts = {BatchLayout(size): layout for size in sizes}
    movable = math.prod(layout.mesh.shape[axis] for axis in LENDABLE)
    for size in sizes:
        parts = math.gcd(size, movable)
        if parts > 1 and stays(other := side_by_side(layout, parts)):
            layouts[BatchLayout(size, parts)] = other
    return layouts
