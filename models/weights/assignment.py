"""Assignment of a checkpoint's tensors to parameters, completely validated before reading."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, dropwhile
from typing import Any

from flax import nnx

from models.checkpoint.folder import WeightsError
from models.checkpoint.key_mapping import Prepare, Renames, Target, source, split, target
from models.checkpoint.safetensors import ComponentFiles, Filling, Slice
from models.checkpoint.tensor import Shape, Tensor
from models.spec.notices import notice

DECISIVE = ("__index_timestep_zero__",)
"""Markers of networks that work differently: unexpected unless the network's rules have them."""
BUFFERS = ("inv_freq", "freqs", "freqs_cis", "num_batches_tracked")
"""Last names of buffers that trainers save, and networks compute."""
TOKENIZERS = ("spiece_model", "tekken_model")
"""Names of tokenizer files in ComfyUI's text encoders, as arrays of bytes."""
INDICES = ("I16", "I32", "I64", "U16", "U32", "U64", "BOOL")
"""Number formats that no weights have, quantized or not."""

MENTIONED = 8
"""Keys that a notice lists."""

Slot = tuple[str, int | None]
"""A leaf's path and the index on its leading axis (None: the complete leaf)."""

Sources = Mapping[int | None, Filling]
"""Fillings of a leaf by the index on its leading axis (None: the complete leaf)."""


def assign(
    part: ComponentFiles,
    tensors: dict[str, Tensor],
    leaves: dict[str, nnx.Variable[Any]],
    renames: Renames,
) -> Mapping[str, Sources]:
    """Assign tensors to leaves and validate all of them.

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
        if not tensor.is_weight:
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
    sources: dict[str, dict[int | None, Filling]] = {path: {} for path in leaves}
    for (path, layer), filling in chosen.items():
        sources[path][layer] = filling
    return sources


def _choose(
    tensors: dict[str, Tensor], leaves: dict[str, nnx.Variable[Any]], renames: Renames
) -> tuple[dict[Slot, Filling], list[str]]:
    """Choose the source tensor of each leaf; also return the keys without a leaf."""
    chosen: dict[Slot, Filling] = {}
    stray: list[str] = []
    passed_over: list[str] = []
    for key, tensor in tensors.items():
        goal = target(key, renames)
        if goal is not None and not goal.path:
            continue
        if goal is None or not all(
            _has_slot(leaves, path, goal.layer) for path in split(goal.path)
        ):
            (passed_over if _is_no_weight(key, tensor) else stray).append(tensor.key)
            continue
        prepare = next(iter(renames[goal.rule][2:]), None)
        for slot, filling in _fillings(tensor, goal, prepare, leaves):
            rival = chosen.get(slot)
            if rival is None or goal.rule < rival.goal.rule:
                chosen[slot] = filling
            elif goal.rule == rival.goal.rule:  # not tied: two spellings of one name
                stray.append(tensor.key)
    if passed_over:
        path = next(iter(tensors.values())).path
        keys = _listed(passed_over)
        notice(f"{path.name}: ignored, since they are not weights: {keys}")
    return chosen, stray


def _listed(keys: list[str]) -> str:
    """Format the first of many checkpoint keys, and the number of the others, for a message."""
    more = f" and {len(keys) - MENTIONED} more" if len(keys) > MENTIONED else ""
    return ", ".join(keys[:MENTIONED]) + more


def _is_no_weight(key: str, tensor: Tensor) -> bool:
    """Return whether an unexpected array of a checkpoint can be ignored, as it changes no output.

    Markers of a kind of file, arrays of at most one number, counts, indices and tokenizers are no
    weights. Buffers are computed from the config.

    Source: ComfyUI, comfy/model_detection.py, for markers; comfy/text_encoders for tokenizers.
    """
    names = (*BUFFERS, *TOKENIZERS)
    is_known = re.fullmatch(rf"(?:.*\.)?(?:__\w+__|{'|'.join(names)})", key) is not None
    is_small = math.prod(tensor.shape) <= 1
    return (is_known or is_small or tensor.kind in INDICES) and key not in DECISIVE


def _fillings(
    tensor: Tensor, goal: Target, prepare: Prepare | None, leaves: dict[str, nnx.Variable[Any]]
) -> Iterator[tuple[Slot, Filling]]:
    """Yield the source of each leaf that a tensor fills: the tensor, or consecutive slices."""
    paths = split(goal.path)
    if len(paths) == 1:
        shape = _stored_shape(goal.path, _slot_shape(leaves[goal.path], goal.layer))
        is_flat = not is_kernel(goal.path) and tensor.shape == (math.prod(shape),)
        fitted = (
            replace(tensor, shape=shape)
            if is_flat and tensor.scale is None
            else _fitted(tensor, shape[::-1] if goal.transposed else shape)
        )
        yield (goal.path, goal.layer), Filling(fitted, goal, prepare)
        return
    lengths = [_rows(path, _slot_shape(leaves[path], goal.layer)) for path in paths]
    for path, length, stop in zip(paths, lengths, accumulate(lengths), strict=True):
        part = Slice(stop - length, stop, sum(lengths))
        yield (path, goal.layer), Filling(tensor, goal, prepare, part)


def _fitted(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor with the expected shape, if both differ only in axes of length 1.

    These are all axes of a vector, such as a bias [1, n, 1, 1], and leading ones, which GGUF's
    tools drop.
    """
    is_vector = math.prod(tensor.shape) == max(tensor.shape, default=0) == math.prod(shape)
    fits = (len(shape) == 1 and is_vector) or _trimmed(shape) == _trimmed(tensor.shape)
    return replace(tensor, shape=shape) if fits and tensor.scale is None else tensor


def _trimmed(shape: Shape) -> Shape:
    """Return a shape without its leading axes of length 1."""
    return tuple(dropwhile(lambda size: size == 1, shape))


def _rows(path: str, shape: Shape) -> int:
    return _stored_shape(path, shape)[0]


def _has_slot(leaves: dict[str, nnx.Variable[Any]], path: str, layer: int | None) -> bool:
    return path in leaves and (layer is None or layer < leaves[path].shape[0])


def _missing(chosen: Any, leaves: dict[str, nnx.Variable[Any]], renames: Renames) -> list[str]:
    """Return the checkpoint keys (or paths, if no key can be built) of unfilled slots."""
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


def _slot_shape(leaf: nnx.Variable[Any], layer: int | None) -> Shape:
    return tuple(leaf.shape if layer is None else leaf.shape[1:])


def _stored_shape(path: str, shape: Shape) -> Shape:
    """Return a leaf's shape in torch's axis order."""
    if is_kernel(path):
        return (shape[-1], shape[-2], *shape[:-2])
    return shape


def _fits(shape: Shape, expected: Shape, path: str) -> bool:
    if is_kernel(path) and len(expected) == 2 and set(shape[2:]) <= {1}:
        shape = shape[:2]
    return shape == expected


def is_kernel(path: str) -> bool:
    """Return whether a leaf is a kernel, whose axis order differs from torch's."""
    return path.endswith("kernel")
