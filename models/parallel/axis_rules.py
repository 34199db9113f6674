"""Logical axis → mesh axes: the one table, and layouts, which are a mesh and a table.

Networks name the axes of their parameters (models/nn/layers/parameterised.py) and of their
activations (models/parallel/placement.py) and know nothing of a mesh. A trace whose options have a
layout (models/parallel/trace_options.py) is split by it; one without runs whole, on one device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from models.parallel.mesh_axes import MESH_AXES, mesh_axes_of

MeshAxes = tuple[str, ...]
Axes = tuple[str | None, ...]
Table = Mapping[str, MeshAxes]

TOKENS = (*mesh_axes_of("fsdp"), *mesh_axes_of("context"))

TABLE: Table = MappingProxyType(
    {
        # Activations.
        "batch": ("data", "cfg"),
        "prompts": ("cfg",),
        "tokens": TOKENS,
        "rows": TOKENS,
        "picture_rows": MESH_AXES,
        "picture_columns": MESH_AXES,
        "positions": MESH_AXES,
        # Activations and parameters.
        "heads": ("tensor",),
        "mlp": ("tensor",),
        "channels": ("tensor",),
        "encoder": MESH_AXES,
        # Parameters.
        "embed": ("fsdp",),
        "conv_in": ("fsdp",),
        "conv_out": ("fsdp",),
        "modulation": ("fsdp",),
        "vocab": (),
        "layers": (),
    }
)
"""`prompts` are those of one row, where they lie apart between its steps. `rows` are an image's,
where it is not a sequence of tokens. An fsdp axis splits the weights
and the tokens: its chips would all do the same otherwise. An autoencoder's images and their
positions are split over everything, and so are the weights of large encoders: nothing else runs
while these do (models/vae/sharded.py, models/parallel/by_size.py)."""

STORED = ("embed", "conv_in", "conv_out", "modulation", "vocab")
"""Axes of parameters alone: what splits them spares memory, not work."""

UNEVEN = ("rows", "picture_rows", "picture_columns", "positions")


def auto_mesh(devices: Any, axes: MeshAxes = MESH_AXES) -> Mesh:
    """The only maker of meshes, with the next one: XLA lays out what no constraint is for.

    From JAX 0.11 on some meshes have explicit axes unless told otherwise, whose layouts are types.

    Args:
        devices: an array of them with an axis for each of `axes`, or a list for one axis.
    """
    return Mesh(np.asarray(devices), axes, axis_types=(AxisType.Auto,) * len(axes))


def abstract_mesh(sizes: Sequence[int], axes: MeshAxes = MESH_AXES) -> AbstractMesh:
    """Build a mesh of devices that are nowhere, for shapes alone."""
    return AbstractMesh(tuple(sizes), axes, axis_types=(AxisType.Auto,) * len(axes))


@dataclass(frozen=True)
class Layout:
    """Layout of one mesh slice: how it splits work; a value, chosen for each compiled program."""

    mesh: Mesh | AbstractMesh
    """Abstract where only shapes are asked for: there is no device then."""
    kernel: Any
    """The attention of one device: a `models.nn.kernels.kernel.Kernel`."""
    table: Table = field(default_factory=lambda: TABLE)
    eight_bit: Any = None
    """Products of activations that are rounded to 8 bits, on one device: a
    `models.nn.kernels.int8_matmul.Product`; None: XLA's, by qwix."""

    @property
    def platform(self) -> str | None:
        """Platform of its devices; None where there are none."""
        return None if isinstance(self.mesh, AbstractMesh) else self.mesh.devices.flat[0].platform

    def size(self, axis: str) -> int:
        """Devices that a logical axis is split over."""
        return self.devices(self.table[axis])

    def devices(self, axes: MeshAxes) -> int:
        """Number of devices that some mesh axes have together."""
        return math.prod(self.mesh.shape[name] for name in axes)

    def split(self, axes: Axes, shape: tuple[int, ...]) -> tuple[MeshAxes, ...]:
        """The mesh axes that each axis of an array is split over; () stays whole.

        No mesh axis splits two of them: the first one has it. Where the devices do not divide a
        size, the last mesh axes are left out until they do; of rows some devices may have one less.
        """
        taken: list[MeshAxes] = []
        for axis, size in zip(axes, shape, strict=True):
            names = self.table[axis] if axis else ()
            names = tuple(name for name in names if self._is_free(name, taken))
            while size % self.devices(names) and not (
                axis in UNEVEN and size > self.devices(names)
            ):
                names = names[:-1]
            taken.append(names)
        return tuple(taken)

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the layout's partition of an array with these axes."""
        return PartitionSpec(*(names or None for names in self.split(axes, shape)))

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array with these axes."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def of_parameter(self, path: str, leaf: nnx.Variable) -> NamedSharding:
        """Return the sharding of a leaf: implementation of `models.weights.loader.Sharding`."""
        return self.sharding(leaf.axes, leaf.shape)

    def in_use(self) -> Layout:
        """Return the layout while a layer runs: parameters are split over tensor alone."""
        return replace(self, table={**self.table, **{axis: () for axis in STORED}})

    def _is_free(self, name: str, taken: list[MeshAxes]) -> bool:
        return self.mesh.shape[name] > 1 and not any(name in names for names in taken)


@dataclass(frozen=True)
class Split:
    """Split of one activation of a traced program by a layout."""

    where: str
    """Qualified name of the function that asks for it."""
    axes: Axes
    shape: tuple[int, ...]
    dtype: str
    over: tuple[MeshAxes, ...]
    """Mesh axes that each of its axes is split over."""
