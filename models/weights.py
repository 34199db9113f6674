"""The one loader: safetensors in diffusers' layout → the arrays of a module, each in its place.

A family states its checkpoint's names as a rename table; this file does the rest. Beside what is
already loaded, host memory holds one parameter and one tensor of it at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.checkpoint import WeightsError, weight_files
from models.nn.layers import Axes
from models.renames import Prepare, Renames, Target, source, split, target
from models.tensors import Filling, Part, Shape, Tensor, open_tensors

Module = TypeVar("Module", bound=nnx.Module)

Sharding = Callable[[str, nnx.Variable], jax.sharding.Sharding]
"""Where a parameter goes, by its path and its abstract value (shape, axes)."""

HOST_MEMORY = "pinned_host"
"""Kind of memory beside the device's that its programs can read from."""
STORED = ("F32", "F16", "BF16")
ALIGNMENT = 64
"""Bytes; host memory aligned so becomes a CPU array as it is, without a copy."""
STRIPE = 64
"""Rows transposed at once: they stay in the cache, which is twice as fast as all at once."""


Slot = tuple[str, int | None]
"""A leaf's path and the place on its leading axis (None: the whole leaf)."""


def load(
    module: Module,
    folder: Path | Part,
    renames: Renames,
    *,
    dtype: DTypeLike | None = None,
    sharding: Sharding | None = None,
    variant: str | None = None,
) -> Module:
    """The module with the arrays of a component's folder, or of its part of a file.

    Kernels turn from torch's layout (out, in, *window) to (*window, in, out), a window of one
    being dropped where the leaf has none; all other arrays are taken as stored.

    Args:
        module: abstract, as `nnx.eval_shape` makes it from the component's config.
        folder: the component's own (`…/transformer`), or the part of a file that it is.
        dtype: of every array, whatever the file stores; left out: of each as the module has it.
        sharding: where each array goes; left out: to JAX's default device.
        variant: which files, where the folder has several (`fp16`).

    Raises:
        WeightsError: keys are missing, stray, misshapen or quantised; names all of them.
        CheckpointError: no safetensors files, or damaged ones.
    """
    leaves = flat_parameters(module)
    part = folder if isinstance(folder, Part) else Part(folder.name, weight_files(folder, variant))
    with ExitStack() as files:
        slots = _assign(part, open_tensors(part, files), leaves, renames)
        arrays = {}
        for path, leaf in leaves.items():
            host = _assemble(
                leaf.shape, slots[path], np.dtype(dtype or leaf.dtype), path.endswith("kernel")
            )
            place = sharding(path, leaf) if sharding else None
            arrays[path] = jax.block_until_ready(put(host, place))
    return _filled(module, arrays)


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
    """Of a matrix or a kernel, or a stack of them: nearly all of a network's bytes."""
    return len(axes) - ("layers" in axes) > 1


def put(host: np.ndarray, place: jax.sharding.Sharding | None) -> jax.Array:
    """The array where it belongs. Of a slice of several processes each puts its own part there,
    and asks nobody whether the others have the same: they read the same checkpoint."""
    if place is None or place.is_fully_addressable:
        return jax.device_put(host, place)
    return jax.make_array_from_callback(host.shape, place, lambda index: host[index])


def flat_parameters(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Every parameter by its dotted attribute path; places in lists are numbers."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): leaf for path, leaf in flat}


def _filled(module: Module, arrays: dict[str, jax.Array]) -> Module:
    graph, state = nnx.split(module)
    flat = (
        (path, leaf.replace(arrays[".".join(map(str, path))]))
        for path, leaf in nnx.to_flat_state(state)
    )
    return nnx.merge(graph, nnx.from_flat_state(list(flat)))


Sources = dict[int | None, Filling]


def _assign(
    part: Part, tensors: dict[str, Tensor], leaves: dict[str, nnx.Variable], renames: Renames
) -> dict[str, Sources]:
    """Which tensors fill each leaf, all of them checked.

    Raises:
        WeightsError: names every key that is missing, stray, misshapen or of another type.
    """
    chosen, stray = _choose(tensors, leaves, renames)
    misshapen, mistyped = {}, {}
    for (path, layer), filling in chosen.items():
        tensor = filling.tensor
        expected = filling.shape_in_file(_stored_shape(path, _slot_shape(leaves[path], layer)))
        if not _fits(tensor.shape, expected, path):
            misshapen[tensor.key] = (tensor.key, expected, tensor.shape)
        if tensor.kind not in STORED:
            mistyped[tensor.key] = (tensor.key, tensor.kind)
    missing = _missing(chosen.keys(), leaves, renames)
    if missing or stray or misshapen or mistyped:
        raise WeightsError(
            part.component,
            missing=tuple(part.prefix + key for key in missing),
            stray=tuple(stray),
            misshapen=tuple(misshapen.values()),
            mistyped=tuple(mistyped.values()),
        )
    sources: dict[str, Sources] = {path: {} for path in leaves}
    for (path, layer), filling in chosen.items():
        sources[path][layer] = filling
    return sources


def _choose(
    tensors: dict[str, Tensor], leaves: dict[str, nnx.Variable], renames: Renames
) -> tuple[dict[Slot, Filling], list[str]]:
    """What fills each slot, and the keys that fill none."""
    chosen: dict[Slot, Filling] = {}
    stray = []
    for key, tensor in tensors.items():
        goal = target(key, renames)
        if goal is not None and not goal.path:
            continue
        if goal is None or not all(
            _has_slot(leaves, path, goal.layer) for path in split(goal.path)
        ):
            stray.append(tensor.key)
            continue
        prepare = next(iter(renames[goal.rule][2:]), None)
        for slot, filling in _fillings(tensor, goal, prepare):
            rival = chosen.get(slot)
            if rival is None or goal.rule < rival.goal.rule:
                chosen[slot] = filling
            elif goal.rule == rival.goal.rule:  # not tied: the same name, in two spellings
                stray.append(tensor.key)
    return chosen, stray


def _fillings(tensor: Tensor, goal: Target, prepare: Prepare | None) -> list[tuple[Slot, Filling]]:
    paths = split(goal.path)
    return [
        ((path, goal.layer), Filling(tensor, goal, prepare, number, len(paths)))
        for number, path in enumerate(paths)
    ]


def _has_slot(leaves: dict[str, nnx.Variable], path: str, layer: int | None) -> bool:
    return path in leaves and (layer is None or layer < leaves[path].shape[0])


def _missing(chosen: Any, leaves: dict[str, nnx.Variable], renames: Renames) -> list[str]:
    """Checkpoint keys (or, where none can be spelled, paths) of the slots that nothing fills."""
    missing = []
    for path, leaf in leaves.items():
        if (path, None) in chosen:
            continue
        stacked = (path, 0) in chosen or source(path, 0, renames) is not None
        layers = range(leaf.shape[0]) if stacked else [None]
        missing += [
            source(path, layer, renames) or (path if layer is None else f"{path}[{layer}]")
            for layer in layers
            if (path, layer) not in chosen
        ]
    return list(dict.fromkeys(missing))


def _slot_shape(leaf: nnx.Variable, layer: int | None) -> Shape:
    return tuple(leaf.shape if layer is None else leaf.shape[1:])


def _stored_shape(path: str, shape: Shape) -> Shape:
    """A leaf's shape as torch lays it out."""
    if path.endswith("kernel"):
        return (shape[-1], shape[-2], *shape[:-2])
    return shape


def _fits(found: Shape, expected: Shape, path: str) -> bool:
    if path.endswith("kernel") and len(expected) == 2 and set(found[2:]) <= {1}:
        found = found[:2]
    return found == expected


def _assemble(shape: Shape, sources: Sources, dtype: np.dtype, is_kernel: bool) -> np.ndarray:
    array = _aligned(shape, dtype)
    for layer, filling in sources.items():
        _copy(array if layer is None else array[layer], filling.read(), is_kernel)
    return array


def _aligned(shape: Shape, dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _copy(to: np.ndarray, part: np.ndarray, is_kernel: bool) -> None:
    """Casts and, for kernels, transposes into place, without another array in between."""
    if not is_kernel:
        to[...] = part
    elif to.ndim == 2:
        part = part.reshape(part.shape[:2])
        for start in range(0, len(part), STRIPE):
            to[:, start : start + STRIPE] = part[start : start + STRIPE].T
    else:
        to[...] = part.transpose(*range(2, part.ndim), 1, 0)
