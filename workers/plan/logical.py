"""One trace for all layouts: a mesh whose axes are the networks' own logical ones.

Every axis has size 1, so nothing is split; but each constraint in the traced program says which
logical axes it stands on, and from those and a layout's table follows each device's share.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.sharding import AbstractMesh, PartitionSpec

from models.nn.attention.xla import xla_kernel
from models.sharding import TABLE, Axes, Layout, MeshAxes


@dataclass(frozen=True)
class Logical(Layout):
    """A layout that names what others split."""

    def _is_free(self, name: str, taken: list[MeshAxes]) -> bool:
        return not any(name in names for names in taken)


def logical_layout() -> Layout:
    names = tuple(TABLE)
    # Only traced: of kernels that all do the same work, the one that is plainest to count.
    return Logical(AbstractMesh((1,) * len(names), names), xla_kernel, {n: (n,) for n in names})


def axes_of(spec: PartitionSpec, rank: int) -> Axes:
    """The logical axis of each dimension."""
    names = [entry[0] if isinstance(entry, tuple) else entry for entry in spec]
    return (*names, *(None,) * (rank - len(names)))
