"""Elastic layouts: the same devices split one row over all of them, or work on several rows side by
side, and no weight moves in between."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
from jax.sharding import Mesh

from models.pipeline import PyTree
from models.sharding import MESH_AXES, Layout
from workers.step_times import Way

GIVING = ("ulysses", "ring", "cfg")
"""Axes whose devices can work on other rows instead, those whose collectives cost most first."""


def side_by_side(layout: Layout, parts: int) -> Layout:
    """The same devices in the same order, so many times fewer of them on each row.

    Args:
        parts: divides the devices that `GIVING` has.
    """
    sizes, left = dict(layout.mesh.shape), parts
    for axis in GIVING:
        given = math.gcd(left, sizes[axis])
        sizes[axis] //= given
        left //= given
    sizes["data"] *= parts
    grid = layout.mesh.devices.reshape([sizes[axis] for axis in MESH_AXES])
    return replace(layout, mesh=Mesh(grid, MESH_AXES))


def layouts_by_way(layout: Layout, weights: PyTree, sizes: Sequence[int]) -> Mapping[Way, Layout]:
    """By which layout each way of stepping so many rows is compiled.

    Args:
        weights: as the layout has placed them, perhaps abstract. Where a layout would have one of
            them elsewhere, it is left out.
    """
    found = {Way(size): layout for size in sizes}
    movable = math.prod(layout.mesh.shape[axis] for axis in GIVING)
    for size in sizes:
        parts = math.gcd(size, movable)
        if parts > 1 and stays(weights, layout, other := side_by_side(layout, parts)):
            found[Way(size, parts)] = other
    return found


def stays(weights: PyTree, layout: Layout, other: Layout) -> bool:
    """Whether every array lies as it is under the other layout, too."""
    return all(
        _moved(leaf.sharding, layout, other).is_equivalent_to(leaf.sharding, leaf.ndim)
        for leaf in jax.tree.leaves(weights)
        if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
        and isinstance(leaf.sharding, jax.sharding.NamedSharding)
    )


def _moved(
    sharding: jax.sharding.NamedSharding, layout: Layout, other: Layout
) -> jax.sharding.NamedSharding:
    """The same axes of the other mesh."""
    return jax.sharding.NamedSharding(other.mesh, sharding.spec, memory_kind=sharding.memory_kind)
