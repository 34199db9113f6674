"""The one loader: safetensors in diffusers' layout → the arrays of a module, each in its place.

A family states its checkpoint's names as a rename table; this file does the rest. Threads read
ahead, and beside what is already loaded host memory holds `IN_FLIGHT` bytes and, where a leaf is
made on the host, that leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint.direct_io import BufferPool, DiskFile
from models.checkpoint.folder import weight_files
from models.checkpoint.key_mapping import Renames
from models.checkpoint.safetensors import ComponentFiles, open_tensors
from models.nn.layers.parameterised import Axes
from models.weights.assignment import assign, is_kernel
from models.weights.device_transfer import Laid, Leaf, Read, laid
from models.weights.quantize import as_stored, as_used
from models.weights.sharing import PlacedArrays

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable], jax.sharding.Sharding]
"""Function from a parameter's path and abstract value (shape, axes) to its sharding."""

Change = Callable[[str, jax.Array], jax.Array]
"""Function from a parameter's path and array to what takes its place; it may have its memory."""

HOST_MEMORY = "pinned_host"
"""Kind of memory beside the device's that its programs can read from."""
IN_FLIGHT = 1 << 28
"""Bytes read ahead: twice what a disk's threads have in hand, so that one of the largest matrices
that networks usually have (13,824 x 5,120 in bfloat16, 142 MB) is sent while the next one is read.
A larger one is read alone, by all threads."""


def load(
    module: Module,
    folder: Path | ComponentFiles,
    renames: Renames,
    *,
    dtype: DTypeLike | None = None,
    sharding: Sharding | None = None,
    variant: str | None = None,
    transfer: Callable[[Leaf, BufferPool], Laid] = laid,
    change: Change | None = None,
    shared: PlacedArrays | None = None,
) -> Module:
    """The module with the arrays of a component's folder, or of its part of a file.

    Kernels turn from torch's layout (out, in, *window) to (*window, in, out), a window of one
    being dropped where the leaf has none; all other arrays are taken as stored. What the module has
    in 8 bits is rounded then, leaf by leaf (models/weights/quantize.py).

    Args:
        module: abstract, as `nnx.eval_shape` makes it from the component's config.
        folder: the component's own (`…/transformer`), or the part of a file that it is.
        dtype: of every array, whatever the file stores; left out: of each as the module has it.
        sharding: where each array goes; left out: to JAX's default device.
        variant: which files, where the folder has several (`fp16`).
        transfer: puts each array on its devices.
        change: made to each array that is there, before it is rounded; None: none.
        shared: arrays of networks before, which this one holds, too, where they are equal; None:
            all of its arrays are its own.

    Raises:
        WeightsError: keys are missing, stray, misshapen or quantised; names all of them.
        CheckpointError: no safetensors files, or damaged ones.
    """
    leaves = flat_parameters(module)
    stored = as_stored(leaves)
    part = (
        folder
        if isinstance(folder, ComponentFiles)
        else ComponentFiles(folder.name, weight_files(folder, variant))
    )
    with ExitStack() as files:
        tensors = open_tensors(part, files)
        sources = assign(part, tensors, stored, renames)
        readers = max((tensor.file.readers for tensor in tensors.values()), default=1)
        pool = BufferPool(IN_FLIGHT)
        laying = [
            transfer(
                Leaf(
                    tuple(leaf.shape),
                    np.dtype(dtype or leaf.dtype),
                    sources[path],
                    is_kernel(path),
                    sharding(path, leaf) if sharding else None,
                ),
                pool,
            )
            for path, leaf in stored.items()
        ]
        arrays: dict[str, jax.Array] = {}
        for path, array in zip(stored, laid_out(laying, readers), strict=True):
            used = as_used(path, change(path, array) if change else array, leaves, sharding)
            arrays |= _held_once(used, shared)
    return filled(module, jax.block_until_ready(arrays))


def _held_once(arrays: dict[str, jax.Array], shared: PlacedArrays | None) -> dict[str, jax.Array]:
    """Return arrays by path, or equal ones that are held already."""
    if shared is None:
        return arrays
    return {path: shared.once(path, array) for path, array in arrays.items()}


class _Ahead:
    """Leaves whose parts are being read, in their order."""

    def __init__(self, threads: ThreadPoolExecutor, in_flight: int) -> None:
        self._threads = threads
        self._most = in_flight
        self._parts: deque[tuple[Laid, Read | None, Future[np.ndarray | None] | None]] = deque()
        """Behind a leaf's last part the leaf itself, without one."""
        self._bytes = 0

    def read(self, leaf: Laid) -> Iterator[jax.Array]:
        """Begin to read one more; gives those that are there by now."""
        for part in leaf.reads():
            while part.nbytes and self._bytes and self._bytes + part.nbytes > self._most:
                yield from self._settle()
            self._bytes += part.nbytes
            self._parts.append((leaf, part, self._threads.submit(part.work)))
        self._parts.append((leaf, None, None))

    def rest(self) -> Iterator[jax.Array]:
        while self._parts:
            yield from self._settle()

    def _settle(self) -> Iterator[jax.Array]:
        leaf, part, read = self._parts.popleft()
        if part is None or read is None:
            yield leaf.array()
        else:
            leaf.take(part.layer, read.result())
            self._bytes -= part.freed


def laid_out(
    leaves: Iterable[Laid], readers: int = DiskFile.readers, in_flight: int = IN_FLIGHT
) -> Iterator[jax.Array]:
    """Yield each leaf in order.

    Args:
        readers: threads.
        in_flight: bytes that are read ahead.

    Raises: CheckpointError.
    """
    threads = ThreadPoolExecutor(readers, "weights")
    ahead = _Ahead(threads, in_flight)
    try:
        for leaf in leaves:
            yield from ahead.read(leaf)
        yield from ahead.rest()
    finally:
        threads.shutdown(cancel_futures=True)


def beside(sharding: Sharding) -> Sharding:
    """The same places, in host memory: programs bring what they use, a layer at a time.

    Vectors stay on the device: they are small, and libtpu (0.0.51) compiles no program that cuts
    a layer's out of a stack of them in host memory.
    """

    def place(path: str, leaf: nnx.Variable) -> jax.sharding.Sharding:
        there = sharding(path, leaf)
        return there.with_memory_kind(HOST_MEMORY) if is_matrix(leaf.axes) else there

    return place


def is_matrix(axes: Axes) -> bool:
    """Return whether axes are a matrix's or a kernel's, or a stack's: nearly all of the bytes."""
    return len(axes) - ("layers" in axes) > 1


def put(host: np.ndarray, place: jax.sharding.Sharding | None) -> jax.Array:
    """The array where it belongs.

    Of a slice of several processes each puts its own part there, and asks nobody whether the others
    have the same: they read the same checkpoint.
    """
    if place is None or place.is_fully_addressable:
        return jax.device_put(host, place)
    return jax.make_array_from_callback(host.shape, place, lambda index: host[index])


def flat_parameters(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Return every parameter by its dotted attribute path; indices of lists are numbers."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): leaf for path, leaf in flat}


def filled(module: Module, arrays: dict[str, jax.Array]) -> Module:
    """The module with these for its parameters, by path."""
    graph, state = nnx.split(module)
    flat = (
        (path, leaf.replace(arrays[".".join(map(str, path))]))
        for path, leaf in nnx.to_flat_state(state)
    )
    return nnx.merge(graph, nnx.from_flat_state(list(flat)))
