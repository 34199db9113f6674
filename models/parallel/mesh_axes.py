"""Properties of the axes of a mesh slice, one row each. Does not import JAX."""

from __future__ import annotations

from typing import NamedTuple


class Axis(NamedTuple):
    """Axis of a mesh slice: one way to split work over devices."""

    name: str
    """Name in settings, plans and messages."""
    splits: str
    """Data that is divided among the axis's devices."""
    mesh_axes: tuple[str, ...]
    """Axes of the device mesh that form this axis, the one between hosts first."""
    is_lendable: bool
    """Whether its devices may step other rows instead, which moves no weights."""
    crosses_hosts: bool
    """Whether "auto" may place it between hosts. (`data` does not speed up a single request, and
    `tensor` exchanges too much.)"""


AXES = (
    Axis("data", "rows", ("data",), is_lendable=False, crosses_hosts=False),
    Axis("fsdp", "weights and tokens", ("fsdp",), is_lendable=False, crosses_hosts=True),
    Axis("cfg", "guidance passes", ("cfg",), is_lendable=True, crosses_hosts=True),
    Axis("context", "tokens", ("ring", "ulysses"), is_lendable=True, crosses_hosts=True),
    Axis("tensor", "heads and mlp", ("tensor",), is_lendable=False, crosses_hosts=False),
)
"""Axes in mesh order, from the least communication to the most."""

AXIS_NAMES = tuple(axis.name for axis in AXES)
MESH_AXES = tuple(name for axis in AXES for name in axis.mesh_axes)
"""Axis names of every device mesh."""
LENDABLE = tuple(
    name for axis in reversed(AXES) if axis.is_lendable for name in axis.mesh_axes[::-1]
)
"""Lendable mesh axes, those with the costliest collectives first."""
CROSSING = tuple(axis.name for axis in AXES if axis.crosses_hosts)


def mesh_axes_of(name: str) -> tuple[str, ...]:
    """Return the mesh axes of an axis; a mesh axis returns itself."""
    return next((axis.mesh_axes for axis in AXES if axis.name == name), (name,))
