"""Transfer of a parameter: read its tensors, transpose them, put them on their devices.

Kernels turn from torch's layout (out, in, *window) to (*window, in, out). On a host they are turned
into the memory that becomes the array; on an accelerator each tensor is sent as it is stored, and
turned there into its place: the host only reads, and holds no more than what is being read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.checkpoint.direct_io import BufferPool, Scratch, aligned
from models.checkpoint.safetensors import Filling, Shape
from models.weights.assignment import Sources

STRIPE = 128
"""Rows turned at once: they stay in the cache. Measured: 1.3 GB/s of one core (Xeon, 2 MB of L2),
1.1 with 64, 0.9 with 32."""
PIECE = 8 << 20
"""Bytes that one thread turns or copies on the host before it reads on."""

_scratch = threading.local()


@dataclass(frozen=True)
class Read:
    """Thread's work: a part of a leaf."""

    nbytes: int
    """Bytes that it holds from here on."""
    freed: int
    """Bytes of this leaf's reads that are free when this one is taken."""
    work: Callable[[], np.ndarray | None]
    layer: int | None


class Laid(Protocol):
    """Leaf on its way."""

    def reads(self) -> Iterator[Read]:
        """Yield the reads. In any threads, side by side."""
        ...

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Take the result of a read. In one thread, in their order."""
        ...

    def array(self) -> jax.Array:
        """Return the leaf on its devices, when all are taken."""
        ...


@dataclass(frozen=True)
class Leaf:
    """Leaf to transfer."""

    shape: Shape
    dtype: np.dtype[Any]
    sources: Sources
    is_kernel: bool
    place: Sharding | None
    """Sharding of the leaf; None: JAX's default device."""

    def turns(self, filling: Filling) -> bool:
        """Return whether that has its axes in another order."""
        return self.is_kernel != filling.goal.transposed


def laid(leaf: Leaf, pool: BufferPool) -> Laid:
    """The way that is best for where it goes. `pool`: memory to read into."""
    return OnDevice(leaf, pool) if _is_beyond_a_bus(leaf.place) else OnHost(leaf, pool)


def _is_beyond_a_bus(place: Sharding | None) -> bool:
    if place is None:
        return jax.default_backend() != "cpu"
    (platform,) = {device.platform for device in place.device_set}  # type: ignore[attr-defined]
    return (
        platform != "cpu"
        and place.is_fully_addressable  # else all processes would have to run the same programs
        and place.memory_kind in (None, "device")
    )


class OnHost:
    """A leaf transposed on the host, by the threads that read.

    For CPUs, for host memory beside a device's, and for slices of several processes, of which each
    reads the rows that its devices need.
    """

    def __init__(self, leaf: Leaf, pool: BufferPool) -> None:
        self._leaf = leaf
        self._parts: dict[Index, np.ndarray] = {}

    def reads(self) -> Iterator[Read]:
        """Yield the reads that make the array."""
        for index in _own_indices(self._leaf):
            self._parts[index], works = part_of(self._leaf, index)
            yield from (Read(PIECE, PIECE, work, None) for work in works)

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Do nothing: the reads write into their place."""

    def array(self) -> jax.Array:
        """Return the array, where it is to lie."""
        place, shape = self._leaf.place, self._leaf.shape
        if place is None or place.is_fully_addressable:
            (whole,) = self._parts.values()
            array = jax.device_put(whole, place)
        else:
            array = jax.make_array_from_callback(
                shape, place, lambda index: self._parts[_index(index or (), shape)]
            )
        self._parts.clear()
        return jax.block_until_ready(array)


class OnDevice:
    """Sent as it is stored, turned there: for accelerators of this process alone."""

    def __init__(self, leaf: Leaf, pool: BufferPool) -> None:
        self._leaf = leaf
        self._pool = pool
        self._array: jax.Array | None = None

    def reads(self) -> Iterator[Read]:
        """Yield the reads that make the array."""
        for layer, filling in self._leaf.sources.items():
            nbytes = filling.rows * filling.tensor.row_bytes
            *before, last = filling.parts(self._pool.take)
            yield from (Read(nbytes * (n == 0), 0, one, layer) for n, one in enumerate(before))
            yield Read(0 if before else nbytes, nbytes, last, layer)

    def take(self, layer: int | None, read: np.ndarray | None) -> None:
        """Put what was read into its place on the device."""
        if read is None:  # a part of what is to come
            return
        leaf, shape = self._leaf, self._leaf.shape
        is_turned = leaf.turns(leaf.sources[layer])
        slot = shape if layer is None else shape[1:]
        stored = read.reshape(read.shape[: len(slot)])  # windows of one that the leaf has not
        there = stored_place(leaf.place, len(slot), layer is not None, is_turned)
        sent = jax.device_put(stored, there)
        programs = _programs(leaf.place, leaf.dtype.name, is_turned)
        if layer is None:
            self._array = programs.turn(sent)
        else:
            if self._array is None:
                self._array = programs.empty(shape)
            self._array = programs.write(self._array, sent, layer)
        jax.block_until_ready(sent)
        if not may_share(stored, sent):
            self._pool.give(stored)

    def array(self) -> jax.Array:
        """Return the array, once all is taken."""
        assert self._array is not None
        return self._array


def may_share(stored: np.ndarray, sent: jax.Array) -> bool:
    """Return whether the array may be that memory itself: a CPU takes what is aligned as it is."""
    return any(device.platform == "cpu" for device in sent.devices())


@dataclass(frozen=True)
class TransferPrograms:
    """Programs for leaves of one sharding and dtype."""

    empty: Callable[[Shape], jax.Array]
    turn: Callable[[jax.Array], jax.Array]
    write: Callable[[jax.Array, jax.Array, int], jax.Array]
    """Write into an index on the leading axis of an array, which it takes over."""


@lru_cache
def _programs(place: Sharding | None, dtype: str, is_turned: bool) -> TransferPrograms:
    def turn(stored: jax.Array) -> jax.Array:
        array = stored.astype(dtype)
        return array.transpose(*range(2, array.ndim), 1, 0) if is_turned else array

    def write(array: jax.Array, stored: jax.Array, layer: int) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(array, turn(stored), layer, 0)

    def empty(shape: Shape) -> jax.Array:
        return jax.numpy.zeros(shape, dtype)

    return TransferPrograms(
        jax.jit(empty, static_argnums=0, out_shardings=place),
        jax.jit(turn, out_shardings=place),
        jax.jit(write, donate_argnums=0, out_shardings=place),
    )


def stored_place(
    place: Sharding | None, ndim: int, is_layered: bool, is_turned: bool
) -> Sharding | None:
    """Return a sharding of the tensor for which a transpose moves nothing between devices.

    Args:
        place: of the leaf.
        ndim: of the tensor.
        is_layered: whether the leaf has many of them, on a leading axis.
    """
    if not isinstance(place, NamedSharding):
        return place
    spec = (*place.spec, *[None] * (ndim + is_layered - len(place.spec)))[is_layered:]
    if is_turned:
        spec = (spec[-1], spec[-2], *spec[:-2])
    return NamedSharding(place.mesh, PartitionSpec(*spec))


Index = tuple[tuple[int, int], ...]
"""A part of an array: from where to where on each of its axes."""


def _index(slices: tuple[slice, ...], shape: Shape) -> Index:
    return tuple(one.indices(size)[:2] for one, size in zip(slices, shape, strict=True))


def _own_indices(leaf: Leaf) -> list[Index]:
    """The parts that this process lays; all in one where all devices are its own."""
    if leaf.place is None or leaf.place.is_fully_addressable:
        return [tuple((0, size) for size in leaf.shape)]
    indices = leaf.place.addressable_devices_indices_map(leaf.shape).values()
    return list(dict.fromkeys(_index(index, leaf.shape) for index in indices if index is not None))


def part_of(leaf: Leaf, index: Index) -> tuple[np.ndarray, Iterator[Callable[[], None]]]:
    """Memory for a part of a leaf, and what fills it: a few rows of a file each, in any threads."""
    part = _empty(tuple(stop - start for start, stop in index), leaf.dtype)

    def works() -> Iterator[Callable[[], None]]:
        for layer, filling in leaf.sources.items():
            if layer is None:
                yield from _pieces(part, index, filling, leaf.turns(filling))
            elif index[0][0] <= layer < index[0][1]:
                to = part[layer - index[0][0]]
                yield from _pieces(to, index[1:], filling, leaf.turns(filling))

    return part, works()


def _pieces(
    to: np.ndarray, index: Index, filling: Filling, is_turned: bool
) -> Iterator[Callable[[], None]]:
    """Yield the fillings of a part of one place, a few rows of the file at a time."""
    axis = len(index) - 1 if is_turned else 0
    first, stop = index[axis]
    cut = tuple(slice(*bounds) for bounds in index)
    row_bytes = max(1, filling.tensor.row_bytes)
    rows = stop - first if filling.is_whole else max(1, PIECE // row_bytes // STRIPE) * STRIPE
    for start in range(first, stop, rows):
        end = min(start + rows, stop)
        there = (slice(None),) * axis + (slice(start - first, end - first),)
        others = (*cut[:axis], slice(None), *cut[axis + 1 :])
        yield partial(_copy_rows, to[there], filling, (start, end), others, is_turned)


def _copy_rows(
    to: np.ndarray,
    filling: Filling,
    rows: tuple[int, int],
    others: tuple[slice, ...],
    is_turned: bool,
) -> None:
    if not hasattr(_scratch, "memory"):
        _scratch.memory = Scratch()
    stored = filling.read(*rows, _scratch.memory.take)
    stored = stored.reshape(stored.shape[: to.ndim])  # windows of one that the leaf has not
    turned = stored.transpose(*range(2, stored.ndim), 1, 0) if is_turned else stored
    _copy(to, turned[others])


def _copy(to: np.ndarray, part: np.ndarray) -> None:
    """Casts into place, without another array in between."""
    if to.dtype == part.dtype:  # as numbers that NumPy copies without Python's lock
        to, part = (array.view(f"u{array.itemsize}") for array in (to, part))
    if to.ndim != 2:
        to[...] = part
        return
    for start in range(0, to.shape[1], STRIPE):
        to[:, start : start + STRIPE] = part[:, start : start + STRIPE]


def _empty(shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    """Aligned so that it becomes a CPU's array as it is, without a copy."""
    return aligned(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
