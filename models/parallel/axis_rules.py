"""Sharding table from logical axes to mesh axes, and layouts: a mesh with a table.

Networks name the logical axes of their parameters (models/nn/layers/parameterised.py) and
activations (models/parallel/placement.py), and do not depend on a mesh. If a trace's options have a
layout (models/parallel/trace_options.py), it splits the arrays; otherwise the trace is for one
device.
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
        "image_rows": MESH_AXES,
        "image_columns": MESH_AXES,
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
"""`prompts` is the axis of one row's prompts, which may be split between its steps. `rows` are rows
of an image that is not a token sequence. fsdp splits weights and also tokens: otherwise its chips
would repeat the same work. An autoencoder's images and positions, and the weights of large
encoders, are split over all devices: nothing else runs at that time (models/vae/sharded.py,
models/parallel/encoder_axes.py)."""

STORED = ("embed", "conv_in", "conv_out", "modulation", "vocab")
"""Axes of parameters only: splitting them saves memory, not compute."""

UNEVEN = ("rows", "image_rows", "image_columns", "positions")


def auto_mesh(devices: Any, axes: MeshAxes = MESH_AXES) -> Mesh:
    """Build a device mesh; XLA chooses layouts except where code has constraints.

    From JAX 0.11 on some meshes default to explicit axes, whose layouts are types. So this function
    and `abstract_mesh` build all meshes.

    Args:
        devices: array of devices with an axis for each of `axes`, or a list for one axis.
    """
    return Mesh(np.asarray(devices), axes, axis_types=(AxisType.Auto,) * len(axes))


def abstract_mesh(sizes: Sequence[int], axes: MeshAxes = MESH_AXES) -> AbstractMesh:
    """Build a mesh without devices, for computing shapes."""
    return AbstractMesh(tuple(sizes), axes, axis_types=(AxisType.Auto,) * len(axes))


@dataclass(frozen=True)
class Layout:
    """Way in which one mesh slice splits arrays: a value, chosen for each compiled program."""

    mesh: Mesh | AbstractMesh
    """Abstract if only shapes are computed, without devices."""
    kernel: Any
    """Attention kernel of one device: a `models.nn.kernels.kernel.Kernel`."""
    table: Table = field(default_factory=lambda: TABLE)
    eight_bit: Any = None
    """Product of weights and activations in 8 bits, on one device: a
    `models.nn.kernels.int8_matmul.Product`; None: XLA's, by qwix."""

    @property
    def platform(self) -> str | None:
        """Platform of the mesh's devices; None for an abstract mesh."""
        return None if isinstance(self.mesh, AbstractMesh) else self.mesh.devices.flat[0].platform

    def size(self, axis: str) -> int:
        """Return the number of devices that a logical axis is split over."""
        return self.devices(self.table[axis])

    def devices(self, axes: MeshAxes) -> int:
        """Return the product of the sizes of mesh axes."""
        return math.prod(self.mesh.shape[name] for name in axes)

    def split(self, axes: Axes, shape: tuple[int, ...]) -> tuple[MeshAxes, ...]:
        """Return the mesh axes that each axis of an array is split over; () for an unsplit axis.

        A mesh axis splits at most one axis, the first. If the devices do not divide a size, the
        last mesh axes are dropped until they do. Axes in `UNEVEN` need not divide evenly.
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
        """Return the PartitionSpec of an array with these logical axes."""
        return PartitionSpec(*(names or None for names in self.split(axes, shape)))

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """Return the NamedSharding of an array with these logical axes."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def of_parameter(self, path: str, leaf: nnx.Variable[Any]) -> NamedSharding:
        """Return the sharding of a parameter; implements `models.weights.loader.Sharding`."""
        return self.sharding(leaf.axes, leaf.shape)

    def in_use(self) -> Layout:
        """Return the layout of parameters while a layer runs: split over `tensor` only."""
        return replace(self, table={**self.table, **{axis: () for axis in STORED}})

    def _is_free(self, name: str, taken: list[MeshAxes]) -> bool:
        return self.mesh.shape[name] > 1 and not any(name in names for names in taken)


@dataclass(frozen=True)
class Split:
    """Record of how a layout splits one activation of a traced program."""

    where: str
    """Qualified name of the function that calls `split`."""
    axes: Axes
    shape: tuple[int, ...]
    dtype: str
    over: tuple[MeshAxes, ...]
    """Mesh axes that each axis is split over."""
