"""Mesh whose axes are the networks' logical axes, so that one trace serves all layouts.

Every axis has size 1, so nothing is split. Each constraint in the traced program names its logical
axes. A layout's table then gives each device's share.
"""

from __future__ import annotations

from jax.sharding import PartitionSpec

from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import TABLE, Axes, Layout, MeshAxes, abstract_mesh


class Logical(Layout):
    """Layout for tracing that maps each logical axis to a mesh axis of the same name."""

    def split(self, axes: Axes, shape: tuple[int, ...]) -> tuple[MeshAxes, ...]:
        """Return the logical axes themselves as mesh axes."""
        return tuple(
            (axis,) if axis and axis not in axes[:place] else () for place, axis in enumerate(axes)
        )


def logical_layout() -> Layout:
    """Return a layout whose mesh axes are the logical axes, each of size 1."""
    names = tuple(TABLE)
    # Only traced, so use the kernel that is simplest to count; all do the same work.
    return Logical(abstract_mesh((1,) * len(names), names), xla_kernel, {n: (n,) for n in names})


def axes_of(spec: PartitionSpec, rank: int) -> Axes:
    """Return the logical axis of each dimension in a partition spec."""
    names = [entry[0] if isinstance(entry, tuple) else entry for entry in spec]
    return (*names, *(None,) * (rank - len(names)))
