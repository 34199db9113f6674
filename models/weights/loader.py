"""Loader of safetensors weights into a module's sharded arrays, for all families.

A family defines a rename table for its checkpoint's keys. Threads read ahead. In addition to the
loaded arrays, host memory contains up to `IN_FLIGHT` bytes and the leaf that is being assembled on
the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

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
from models.weights.device_transfer import Leaf, LeafTransfer, Read, choose_transfer
from models.weights.quantize import as_stored, as_used
from models.weights.sharing import PlacedArrays

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable[Any]], jax.sharding.Sharding]
"""Function from a parameter's path and abstract value (shape, axes) to its sharding."""

Change = Callable[[str, jax.Array], jax.Array]
"""Function from a parameter's path and array to its replacement, which may reuse its memory."""

HOST_MEMORY = "pinned_host"
"""Memory kind of host memory that device programs can read."""
IN_FLIGHT = 1 << 28
"""Bytes read ahead: twice what a disk's threads read at a time. One of the largest common matrices
(13,824 x 5,120 in bfloat16, 142 MB) can be sent while the next is read. A larger matrix is read
alone, by all threads."""


def load(
    module: Module,
    folder: Path | ComponentFiles,
    renames: Renames,
    *,
    dtype: DTypeLike | None = None,
    sharding: Sharding | None = None,
    variant: str | None = None,
    transfer: Callable[[Leaf, BufferPool], LeafTransfer] = choose_transfer,
    change: Change | None = None,
    shared: PlacedArrays | None = None,
) -> Module:
    """Load a module's arrays from a component's folder, or from its part of a file.

    Kernels are transposed from torch's layout (out, in, *window) to (*window, in, out). Windows of
    size 1 are dropped if the leaf has no window. All other arrays are taken as stored. Leaves with
    8 bits are rounded one by one (models/weights/quantize.py).

    Args:
        module: abstract, from `nnx.eval_shape` and the component's config.
        folder: the component's folder (`…/transformer`), or its part of a file.
        dtype: of every array, regardless of the file; default: each leaf's dtype.
        sharding: of each array; default: JAX's default device.
        variant: of the files, if the folder has several (`fp16`).
        transfer: transfers each array to its devices.
        change: applied to each array before rounding; None: no change.
        shared: arrays of earlier networks, reused where equal; None: no sharing.

    Raises:
        WeightsError: keys are missing, stray, misshapen or quantized; names all of them.
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
        for path, array in zip(stored, transferred_arrays(laying, readers), strict=True):
            used = as_used(path, change(path, array) if change else array, leaves, sharding)
            arrays |= _deduplicated(used, shared)
    return filled(module, jax.block_until_ready(arrays))


def _deduplicated(
    arrays: dict[str, jax.Array], shared: PlacedArrays | None
) -> dict[str, jax.Array]:
    """Replace arrays by equal arrays of earlier networks."""
    if shared is None:
        return arrays
    return {path: shared.deduplicated(path, array) for path, array in arrays.items()}


class _Ahead:
    """Queue of parameters whose parts are being read, in order."""

    def __init__(self, threads: ThreadPoolExecutor, in_flight: int) -> None:
        self._threads = threads
        self._most = in_flight
        self._parts: deque[tuple[LeafTransfer, Read | None, Future[np.ndarray | None] | None]] = (
            deque()
        )
        """Parts of leaves in order; an entry without a part follows each leaf's last part."""
        self._bytes = 0

    def read(self, leaf: LeafTransfer) -> Iterator[jax.Array]:
        """Start reading a parameter, and yield parameters whose parts have all been read."""
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


def transferred_arrays(
    leaves: Iterable[LeafTransfer], readers: int = DiskFile.readers, in_flight: int = IN_FLIGHT
) -> Iterator[jax.Array]:
    """Yield each parameter's array in order, while later ones are read.

    Args:
        readers: number of threads.
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


def in_host_memory(sharding: Sharding) -> Sharding:
    """Return the same shardings in host memory, from which programs copy a layer at a time.

    Vectors stay on the device: they are small, and libtpu (0.0.51) cannot compile a program that
    slices a layer's vector from a stack in host memory.
    """

    def place(path: str, leaf: nnx.Variable[Any]) -> jax.sharding.Sharding:
        placement = sharding(path, leaf)
        return placement.with_memory_kind(HOST_MEMORY) if is_matrix(leaf.axes) else placement

    return place


def is_matrix(axes: Axes) -> bool:
    """Return whether axes belong to a matrix, a kernel or a stack of them: most of the bytes."""
    return len(axes) - ("layers" in axes) > 1


def put(host: np.ndarray, place: jax.sharding.Sharding | None) -> jax.Array:
    """Place a host array on the devices of its sharding.

    Each process of a slice places its own part without comparing with other processes, since all
    read the same checkpoint.
    """
    if place is None or place.is_fully_addressable:
        placed: jax.Array = jax.device_put(host, place)
        return placed
    return jax.make_array_from_callback(host.shape, place, lambda index: host[index])


def flat_parameters(module: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """Return every parameter by its dotted attribute path; indices of lists are numbers."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): leaf for path, leaf in flat}


def filled(module: Module, arrays: dict[str, jax.Array]) -> Module:
    """Return the module with these arrays as its parameters, by path."""
    graph, state = nnx.split(module)
    flat = (
        (path, leaf.replace(arrays[".".join(map(str, path))]))
        for path, leaf in nnx.to_flat_state(state)
    )
    return nnx.merge(graph, nnx.from_flat_state(list(flat)))
