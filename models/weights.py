"""The one loader: safetensors in diffusers' layout → the arrays of a module, each in its place.

A family states its checkpoint's names as a rename table; this file does the rest. Beside what is
already loaded, host memory holds one parameter and one tensor of it at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from models.checkpoint import CheckpointError, WeightsError, weight_files
from models.renames import Prepare, Renames, source, target

Module = TypeVar("Module", bound=nnx.Module)
Shape = tuple[int, ...]

Sharding = Callable[[str, nnx.Variable], jax.sharding.Sharding]
"""Where a parameter goes, by its path and its abstract value (shape, axes)."""

STORED = ("F32", "F16", "BF16")
ALIGNMENT = 64
"""Bytes; host memory aligned so becomes a CPU array as it is, without a copy."""
STRIPE = 64
"""Rows transposed at once: they stay in the cache, which is twice as fast as all at once."""


@dataclass(frozen=True)
class Tensor:
    """One array of a safetensors file, not read yet."""

    key: str
    file: Any
    path: Path
    shape: Shape
    kind: str

    def read(self) -> np.ndarray:
        """Raises: CheckpointError: the file has changed or cannot be read."""
        try:
            return self.file.get_tensor(self.key)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path}: {self.key} cannot be read ({error})") from error


Slot = tuple[str, int | None]
"""A leaf's path and the place on its leading axis (None: the whole leaf)."""


def load(
    module: Module,
    folder: Path,
    renames: Renames,
    *,
    dtype: DTypeLike,
    sharding: Sharding | None = None,
    variant: str | None = None,
) -> Module:
    """The module with the arrays of a component's folder.

    Kernels turn from torch's layout (out, in, *window) to (*window, in, out), a window of one
    being dropped where the leaf has none; all other arrays are taken as stored.

    Args:
        module: abstract, as `nnx.eval_shape` makes it from the component's config.
        folder: the component's own (`…/transformer`).
        dtype: of every array, whatever the file stores.
        sharding: where each array goes; left out: to JAX's default device.
        variant: which files, where the folder has several (`fp16`).

    Raises:
        WeightsError: keys are missing, stray, misshapen or quantised; names all of them.
        CheckpointError: no safetensors files, or damaged ones.
    """
    leaves = flat_parameters(module)
    with ExitStack() as files:
        tensors = _open(weight_files(folder, variant), files)
        slots = _assign(folder.name, tensors, leaves, renames)
        arrays = {}
        for path, leaf in leaves.items():
            host = _assemble(leaf.shape, slots[path], np.dtype(dtype), path.endswith("kernel"))
            place = sharding(path, leaf) if sharding else None
            arrays[path] = jax.block_until_ready(jax.device_put(host, place))
    return _filled(module, arrays)


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


def _open(paths: tuple[Path, ...], files: ExitStack) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            # Read, not mapped: pages of a mapped file count as the process's memory.
            file = files.enter_context(safe_open(path, framework="numpy", backend="pread"))
        except SafetensorError as error:
            raise CheckpointError(
                f"{path}: not a whole safetensors file ({error}); fetch it again"
            ) from error
        for key in file.keys():  # noqa: SIM118 (not a mapping)
            entry = file.get_slice(key)
            tensors[key] = Tensor(key, file, path, tuple(entry.get_shape()), entry.get_dtype())
    return tensors


Sources = dict[int | None, tuple[Tensor, Prepare | None]]


def _assign(
    component: str,
    tensors: dict[str, Tensor],
    leaves: dict[str, nnx.Variable],
    renames: Renames,
) -> dict[str, Sources]:
    """Which tensors fill each leaf, all of them checked.

    Raises:
        WeightsError: names every key that is missing, stray, misshapen or of another type.
    """
    chosen, stray = _choose(tensors, leaves, renames)
    misshapen, mistyped = [], []
    for (path, layer), (tensor, _) in chosen.items():
        expected = _stored_shape(path, _slot_shape(leaves[path], layer))
        if not _fits(tensor.shape, expected, path):
            misshapen.append((tensor.key, expected, tensor.shape))
        if tensor.kind not in STORED:
            mistyped.append((tensor.key, tensor.kind))
    missing = _missing(chosen.keys(), leaves, renames)
    if missing or stray or misshapen or mistyped:
        raise WeightsError(
            component,
            missing=tuple(missing),
            stray=tuple(stray),
            misshapen=tuple(misshapen),
            mistyped=tuple(mistyped),
        )
    sources: dict[str, Sources] = {path: {} for path in leaves}
    for (path, layer), (tensor, rule) in chosen.items():
        sources[path][layer] = (tensor, next(iter(renames[rule][2:]), None))
    return sources


def _choose(
    tensors: dict[str, Tensor], leaves: dict[str, nnx.Variable], renames: Renames
) -> tuple[dict[Slot, tuple[Tensor, int]], list[str]]:
    """The tensor and rule for each slot, and the keys that have none."""
    chosen: dict[Slot, tuple[Tensor, int]] = {}
    stray = []
    for key, tensor in tensors.items():
        goal = target(key, renames)
        if goal is not None and not goal.path:
            continue
        if goal is None or not _has_slot(leaves, goal.path, goal.layer):
            stray.append(key)
            continue
        slot = (goal.path, goal.layer)
        rival = chosen.get(slot, (tensor, len(renames)))[1]
        if goal.rule == rival:  # not tied: the same name twice, in two spellings
            stray.append(key)
        elif goal.rule < rival:
            chosen[slot] = (tensor, goal.rule)
    return chosen, stray


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
    return missing


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
    for layer, (tensor, prepare) in sources.items():
        part = tensor.read()
        if prepare is not None:
            part = prepare(part)
        _copy(array if layer is None else array[layer], part, is_kernel)
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
