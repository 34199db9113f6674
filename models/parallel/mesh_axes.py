"""Axes of a mesh slice, one row each: all that tells one from another. No JAX in here."""

from __future__ import annotations

from typing import NamedTuple


class Axis(NamedTuple):
    """Way to split work over devices."""

    name: str
    """Name, as settings, plans and messages have it."""
    splits: str
    """Thing that each of its devices has a part of."""
    mesh_axes: tuple[str, ...]
    """The axes of the device mesh that it is made of, the one between hosts first."""
    is_lendable: bool
    """Whether its devices may step other rows instead: no weight moves for that."""
    crosses_hosts: bool
    """Whether "auto" lays it between hosts. (`data` serves no single request, and `tensor`
    exchanges too much.)"""


AXES = (
    Axis("data", "rows", ("data",), is_lendable=False, crosses_hosts=False),
    Axis("fsdp", "weights and tokens", ("fsdp",), is_lendable=False, crosses_hosts=True),
    Axis("cfg", "guidance passes", ("cfg",), is_lendable=True, crosses_hosts=True),
    Axis("context", "tokens", ("ring", "ulysses"), is_lendable=True, crosses_hosts=True),
    Axis("tensor", "heads and mlp", ("tensor",), is_lendable=False, crosses_hosts=False),
)
"""Axes in the order of a mesh, from what exchanges least to what exchanges most."""

AXIS_NAMES = tuple(axis.name for axis in AXES)
MESH_AXES = tuple(name for axis in AXES for name in axis.mesh_axes)
"""Axes of every device mesh."""
LENDABLE = tuple(
    name for axis in reversed(AXES) if axis.is_lendable for name in axis.mesh_axes[::-1]
)
"""Mesh axes, those whose collectives cost most first."""
CROSSING = tuple(axis.name for axis in AXES if axis.crosses_hosts)


def mesh_axes_of(name: str) -> tuple[str, ...]:
    """Return the mesh axes of an axis; of a mesh axis itself, that."""
    return next((axis.mesh_axes for axis in AXES if axis.name == name), (name,))
