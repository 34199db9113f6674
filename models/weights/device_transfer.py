"""Transfer of a parameter: read its tensors, transpose them, place them on devices.

Kernels are transposed from torch's layout (out, in, *window) to (*window, in, out). For CPUs the
host transposes directly into the memory of the final array. For accelerators each tensor is sent as
stored and transposed on the device. The host then only reads, and holds only the tensors that are
being read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.checkpoint.direct_io import BufferPool, Scratch, aligned
from models.checkpoint.safetensors import Filling
from models.checkpoint.tensor import Shape
from models.weights.assignment import Sources

STRIPE = 128
"""Rows that are transposed together, which fit the cache. Measured: 1.3 GB/s per core (Xeon, 2 MB
of L2), 1.1 with 64, 0.9 with 32."""
PIECE = 8 << 20
"""Bytes that a thread transposes or copies on the host per task."""

_scratch = threading.local()


@dataclass(frozen=True)
class Read:
    """Read task for part of a parameter, executed by a thread."""

    nbytes: int
    """Bytes that are allocated from now on."""
    freed: int
    """Bytes of this leaf that are released after this task's result is taken."""
    work: Callable[[], np.ndarray | None]
    layer: int | None


@runtime_checkable
class LeafTransfer(Protocol):
    """Protocol of the transfer of one parameter from files to devices."""

    def reads(self) -> Iterator[Read]:
        """Yield the read tasks of the parameter, which may run concurrently."""
        ...

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Process the result of a task. Called in one thread, in order."""
        ...

    def array(self) -> jax.Array:
        """Return the parameter's array, after all results have been taken."""
        ...


@dataclass(frozen=True)
class Leaf:
    """Parameter to load: shape, dtype, source tensors and sharding."""

    shape: Shape
    dtype: np.dtype[Any]
    sources: Sources
    is_kernel: bool
    place: Sharding | None
    """Sharding of the leaf; None: JAX's default device."""

    def needs_transpose(self, filling: Filling) -> bool:
        """Return whether a source tensor must be transposed for the parameter."""
        return self.is_kernel != filling.goal.transposed


def choose_transfer(leaf: Leaf, pool: BufferPool) -> LeafTransfer:
    """Choose the transfer for the leaf's sharding. `pool`: memory for reads."""
    return OnDevice(leaf, pool) if _is_beyond_a_bus(leaf.place) else OnHost(leaf, pool)


def _is_beyond_a_bus(place: Sharding | None) -> bool:
    if place is None:
        return jax.default_backend() != "cpu"
    (platform,) = {device.platform for device in place.device_set}  # type: ignore[attr-defined]
    return (
        platform != "cpu"
        and place.is_fully_addressable  # otherwise all processes must run the same programs
        and place.memory_kind in (None, "device")
    )


class OnHost:
    """Transfer that transposes on the host, in the reading threads.

    For CPUs, for host memory of accelerators, and for slices of several processes, where each
    process reads only the rows of its devices.
    """

    def __init__(self, leaf: Leaf, pool: BufferPool) -> None:
        self._leaf = leaf
        self._parts: dict[Index, np.ndarray] = {}

    def reads(self) -> Iterator[Read]:
        """Yield the read tasks of this process's parts of the parameter."""
        for index in _own_indices(self._leaf):
            self._parts[index], works = part_of(self._leaf, index)
            yield from (Read(PIECE, PIECE, work, None) for work in works)

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Do nothing: tasks write directly to the final memory."""

    def array(self) -> jax.Array:
        """Return the parameter's array with its sharding."""
        place, shape = self._leaf.place, self._leaf.shape
        if place is None or place.is_fully_addressable:
            (host,) = self._parts.values()
            array = jax.device_put(host, place)
        else:
            array = jax.make_array_from_callback(
                shape, place, lambda index: self._parts[_index(index or (), shape)]
            )
        self._parts.clear()
        placed: jax.Array = jax.block_until_ready(array)
        return placed


class OnDevice:
    """Transfer that sends tensors as stored and transposes on the device.

    For accelerators that belong to this process alone.
    """

    def __init__(self, leaf: Leaf, pool: BufferPool) -> None:
        self._leaf = leaf
        self._pool = pool
        self._array: jax.Array | None = None

    def reads(self) -> Iterator[Read]:
        """Yield the read tasks of the stored tensors."""
        for layer, filling in self._leaf.sources.items():
            nbytes = filling.rows * filling.tensor.row_bytes
            *before, last = filling.parts(self._pool.take)
            yield from (Read(nbytes * (n == 0), 0, work, layer) for n, work in enumerate(before))
            yield Read(0 if before else nbytes, nbytes, last, layer)

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Send a tensor and write it to its position on the device."""
        if read is None:  # the last part returns all rows
            return
        leaf, shape = self._leaf, self._leaf.shape
        is_transposed = leaf.needs_transpose(leaf.sources[layer])
        slot = shape if layer is None else shape[1:]
        stored = read.reshape(read.shape[: len(slot)])  # drops windows of size 1
        placement = stored_place(leaf.place, len(slot), layer is not None, is_transposed)
        sent = jax.device_put(stored, placement)
        programs = _programs(leaf.place, leaf.dtype.name, is_transposed)
        if layer is None:
            self._array = programs.transpose(sent)
        else:
            if self._array is None:
                self._array = programs.empty(shape)
            self._array = programs.write(self._array, sent, layer)
        jax.block_until_ready(sent)
        if not may_share(stored, sent):
            self._pool.give(stored)

    def array(self) -> jax.Array:
        """Return the array, after all results have been taken."""
        assert self._array is not None
        return self._array


def may_share(stored: np.ndarray, sent: jax.Array) -> bool:
    """Return whether the array may alias the host memory, as aligned memory does on CPUs."""
    return any(device.platform == "cpu" for device in sent.devices())


@dataclass(frozen=True)
class TransferPrograms:
    """Compiled programs for leaves of one sharding and dtype."""

    empty: Callable[[Shape], jax.Array]
    transpose: Callable[[jax.Array], jax.Array]
    write: Callable[[jax.Array, jax.Array, int], jax.Array]
    """Write to an index on the leading axis of an array, which is donated."""


@lru_cache
def _programs(place: Sharding | None, dtype: str, is_transposed: bool) -> TransferPrograms:
    def transpose(stored: jax.Array) -> jax.Array:
        array = stored.astype(dtype)
        return array.transpose(*range(2, array.ndim), 1, 0) if is_transposed else array

    def write(array: jax.Array, stored: jax.Array, layer: jax.Array) -> jax.Array:
        written: jax.Array = jax.lax.dynamic_update_index_in_dim(array, transpose(stored), layer, 0)
        return written

    def empty(shape: Shape) -> jax.Array:
        return jax.numpy.zeros(shape, dtype)

    return TransferPrograms(
        jax.jit(empty, static_argnums=0, out_shardings=place),
        jax.jit(transpose, out_shardings=place),
        jax.jit(write, donate_argnums=0, out_shardings=place),
    )


def stored_place(
    place: Sharding | None, ndim: int, is_layered: bool, is_transposed: bool
) -> Sharding | None:
    """Return a sharding of the stored tensor for which transposition needs no communication.

    Args:
        place: of the leaf.
        ndim: of the tensor.
        is_layered: whether the leaf stacks several tensors on a leading axis.
    """
    if not isinstance(place, NamedSharding):
        return place
    spec = (*place.spec, *[None] * (ndim + is_layered - len(place.spec)))[is_layered:]
    if is_transposed:
        spec = (spec[-1], spec[-2], *spec[:-2])
    return NamedSharding(place.mesh, PartitionSpec(*spec))


Index = tuple[tuple[int, int], ...]
"""Part of an array: start and stop on each axis."""


def _index(slices: tuple[slice, ...], shape: Shape) -> Index:
    return tuple(bounds.indices(size)[:2] for bounds, size in zip(slices, shape, strict=True))


def _own_indices(leaf: Leaf) -> list[Index]:
    """Return the index ranges of a parameter that this process places; one if all is local."""
    if leaf.place is None or leaf.place.is_fully_addressable:
        return [tuple((0, size) for size in leaf.shape)]
    indices = leaf.place.addressable_devices_indices_map(leaf.shape).values()
    return list(dict.fromkeys(_index(index, leaf.shape) for index in indices if index is not None))


def part_of(leaf: Leaf, index: Index) -> tuple[np.ndarray, Iterator[Callable[[], None]]]:
    """Allocate memory for part of a parameter; also return tasks that fill it a few rows each."""
    part = _empty(tuple(stop - start for start, stop in index), leaf.dtype)

    def works() -> Iterator[Callable[[], None]]:
        for layer, filling in leaf.sources.items():
            if layer is None:
                yield from _pieces(part, index, filling, leaf.needs_transpose(filling))
            elif index[0][0] <= layer < index[0][1]:
                to = part[layer - index[0][0]]
                yield from _pieces(to, index[1:], filling, leaf.needs_transpose(filling))

    return part, works()


def _pieces(
    to: np.ndarray, index: Index, filling: Filling, is_transposed: bool
) -> Iterator[Callable[[], None]]:
    """Yield tasks that fill part of a parameter, a few rows of the file at a time."""
    axis = len(index) - 1 if is_transposed else 0
    first, stop = index[axis]
    cut = tuple(slice(*bounds) for bounds in index)
    row_bytes = max(1, filling.tensor.row_bytes)
    rows = stop - first if filling.is_whole else max(1, PIECE // row_bytes // STRIPE) * STRIPE
    for start in range(first, stop, rows):
        end = min(start + rows, stop)
        target = (slice(None),) * axis + (slice(start - first, end - first),)
        others = (*cut[:axis], slice(None), *cut[axis + 1 :])
        yield partial(_copy_rows, to[target], filling, (start, end), others, is_transposed)


def _copy_rows(
    to: np.ndarray,
    filling: Filling,
    rows: tuple[int, int],
    others: tuple[slice, ...],
    is_transposed: bool,
) -> None:
    if not hasattr(_scratch, "memory"):
        _scratch.memory = Scratch()
    stored = filling.read(*rows, _scratch.memory.take)
    stored = stored.reshape(stored.shape[: to.ndim])  # drops windows of size 1
    transposed = stored.transpose(*range(2, stored.ndim), 1, 0) if is_transposed else stored
    _copy(to, transposed[others])


def _copy(to: np.ndarray, part: np.ndarray) -> None:
    """Copy an array and cast it without an intermediate array."""
    if to.dtype == part.dtype:  # NumPy copies integers without holding the GIL
        to, part = (array.view(f"u{array.itemsize}") for array in (to, part))
    if to.ndim != 2:
        to[...] = part
        return
    for start in range(0, to.shape[1], STRIPE):
        to[:, start : start + STRIPE] = part[:, start : start + STRIPE]


def _empty(shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    """Allocate memory aligned so that a CPU array can use it without a copy."""
    return aligned(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
