"""Mesh whose axes are the networks' own logical ones: one trace for all layouts.

Every axis has size 1, so nothing is split; but each constraint in the traced program says which
logical axes it stands on, and from those and a layout's table follows each device's share.
"""

from __future__ import annotations

from jax.sharding import PartitionSpec

from models.nn.kernels.xla import xla_kernel
from models.parallel.axis_rules import TABLE, Axes, Layout, MeshAxes, abstract_mesh


class Logical(Layout):
    """A layout that names what others split, whatever its table says."""

    def split(self, axes: Axes, shape: tuple[int, ...]) -> tuple[MeshAxes, ...]:
        """Return the logical axes themselves as mesh axes."""
        return tuple(
            (axis,) if axis and axis not in axes[:place] else () for place, axis in enumerate(axes)
        )


def logical_layout() -> Layout:
    """Return a layout whose mesh axes are the logical ones, each of size 1."""
    names = tuple(TABLE)
    # Only traced: of kernels that all do the same work, the one that is plainest to count.
    return Logical(abstract_mesh((1,) * len(names), names), xla_kernel, {n: (n,) for n in names})


def axes_of(spec: PartitionSpec, rank: int) -> Axes:
    """The logical axis of each dimension."""
    names = [entry[0] if isinstance(entry, tuple) else entry for entry in spec]
    return (*names, *(None,) * (rank - len(names)))
