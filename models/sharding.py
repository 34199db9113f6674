"""Logical axis → mesh axes: the one table, and what is split by it.

Networks name the axes of their parameters (models/nn/layers.py) and of their activations (`split`
below) and know nothing of a mesh. A `Layout` is a mesh and a table; what is traced inside
`layout.active()` is split by it, and what is traced outside runs whole, on one device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from models.dtypes import used_dtype

MeshAxes = tuple[str, ...]
Axes = tuple[str | None, ...]
Table = Mapping[str, MeshAxes]

State = TypeVar("State")

MESH_AXES = ("data", "fsdp", "cfg", "ring", "ulysses", "tensor")
"""Of every mesh. `context` is two of them: rings between hosts, Ulysses inside."""

TABLE: Table = MappingProxyType(
    {
        # Activations.
        "batch": ("data", "cfg"),
        "prompts": ("cfg",),
        "tokens": ("fsdp", "ring", "ulysses"),
        "rows": ("fsdp", "ring", "ulysses"),
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
"""`prompts` are those of one row, where they lie apart between its steps. `rows` are a picture's,
where it is not a sequence of tokens. An fsdp axis splits the weights
and the tokens: its chips would all do the same otherwise. An autoencoder's pictures and their
positions are split over everything, and so are the weights of large encoders: nothing else runs
while these do (models/vae/spread.py, models/nn/by_size.py)."""

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
    """One of devices that are nowhere, for shapes alone."""
    return AbstractMesh(tuple(sizes), axes, axis_types=(AxisType.Auto,) * len(axes))


@dataclass(frozen=True)
class Layout:
    """How one mesh slice splits its work: a value, chosen for each compiled program."""

    mesh: Mesh | AbstractMesh
    """Abstract where only shapes are asked for: there is no device then."""
    kernel: Any
    """The attention of one device: a `models.nn.attention.kernel.Kernel`."""
    table: Table = field(default_factory=lambda: TABLE)
    eight_bit: Any = None
    """Products of activations that are rounded to 8 bits, on one device: a
    `models.nn.eight_bit_kernel.Product`; None: XLA's, by qwix."""

    @property
    def platform(self) -> str | None:
        """Of its devices; None where there are none."""
        return None if isinstance(self.mesh, AbstractMesh) else self.mesh.devices.flat[0].platform

    def size(self, axis: str) -> int:
        """Devices that a logical axis is split over."""
        return self.devices(self.table[axis])

    def devices(self, axes: MeshAxes) -> int:
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
        return PartitionSpec(*(names or None for names in self.split(axes, shape)))

    def sharding(self, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """Where an array with these axes lies."""
        return NamedSharding(self.mesh, self.spec(axes, shape))

    def of_parameter(self, path: str, leaf: nnx.Variable) -> NamedSharding:
        """Fulfils `models.weights.Sharding`."""
        return self.sharding(leaf.axes, leaf.shape)

    def in_use(self) -> Layout:
        """As it is while a layer runs: its parameters are split over nothing but tensor."""
        return replace(self, table={**self.table, **{axis: () for axis in STORED}})

    def _is_free(self, name: str, taken: list[MeshAxes]) -> bool:
        return self.mesh.shape[name] > 1 and not any(name in names for names in taken)

    @contextmanager
    def active(self) -> Iterator[None]:
        """What is traced in here is split by this layout."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Layout | None] = ContextVar("layout", default=None)


def active() -> Layout | None:
    """The layout that is traced for; None: one device."""
    return _active.get()


def gathered(parameters: State) -> State:
    """Parameters as they are used: what only their storage is split over is brought together, what
    lies in host memory comes to the device, and each is in the dtype that it is used in.

    Equal layers on a leading axis stay apart: they are gathered when their turn comes.
    """
    layout = _active.get()
    used = None if layout is None else layout.in_use()

    def whole(leaf: nnx.Variable) -> nnx.Variable:
        if _is_apart(leaf):
            return leaf
        axes = leaf.axes[-leaf.ndim :] if leaf.ndim else ()
        if "layers" in axes:
            return leaf
        value, dtype = leaf[...], used_dtype(leaf)
        if dtype.itemsize < value.dtype.itemsize:
            value = value.astype(dtype)  # before it is sent
        if used is not None:
            value = _brought(value, used.sharding(axes, leaf.shape))
        return leaf.replace(value.astype(dtype))

    return jax.tree.map(whole, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def in_place(parameters: State) -> State:
    """Parameters where they lie, each in the dtype that it is used in: for products with so few
    vectors that what comes out is less to send than what is multiplied with."""

    def used(leaf: nnx.Variable) -> nnx.Variable:
        if _is_apart(leaf):
            return leaf
        return leaf.replace(leaf[...].astype(used_dtype(leaf)))

    return jax.tree.map(used, parameters, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def _is_apart(leaf: nnx.Variable) -> bool:
    """An array for each layer, each of which has its turn later (`models.nn.stack`)."""
    return isinstance(leaf.get_value(), tuple)


def _brought(value: jax.Array, place: NamedSharding) -> jax.Array:
    """There, from wherever it is, host memory too."""
    if jax.typeof(value).memory_space == jax.memory.Space.Host:
        return jax.device_put(value, place)
    return jax.lax.with_sharding_constraint(value, place)


def split(x: jax.Array, *axes: str | None) -> jax.Array:
    """The same array, laid out by its logical axes; as it is where no layout is active."""
    layout = _active.get()
    if layout is None:
        return x
    note(sys._getframe(1).f_code.co_qualname, axes, x, layout.split(axes, x.shape))
    return jax.lax.with_sharding_constraint(x, layout.sharding(axes, x.shape))


@dataclass(frozen=True)
class Split:
    """One activation of a traced program."""

    where: str
    """The function that lays it out."""
    axes: Axes
    shape: tuple[int, ...]
    dtype: str
    over: tuple[MeshAxes, ...]
    """Mesh axes that each of its axes is split over."""


_notes: ContextVar[list[Split] | None] = ContextVar("notes", default=None)


@contextmanager
def noted() -> Iterator[list[Split]]:
    """Every activation that is laid out by what is traced in here; of equal layers, once."""
    notes: list[Split] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(where: str, axes: Axes, x: jax.Array, over: tuple[MeshAxes, ...]) -> None:
    """Remember an activation, where somebody asked for it."""
    notes = _notes.get()
    if notes is not None:
        notes.append(Split(where, axes, x.shape, str(x.dtype), over))
