"""Conversion of a file's arrays for one name to low-rank changes of its layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.adapters.files.adapter import (
    AdapterError,
    KernelShape,
    LayerPosition,
    LowRank,
    StoredArray,
)
from models.adapters.files.alphas import Alphas
from models.adapters.files.key_endings import LayerEntries
from models.adapters.files.tensor_file import TensorEntry, TensorFile, shown
from models.spec.lora import MAX_RANK

OTHER_BASE = "the adapter was made for another base model"
FIRST_ROWS = 64
"""Rows of a fused layer that usually suffice to detect its used ranks."""


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a layer, from the file's header."""

    shape: KernelShape
    rank: int


def check_width(layer: LayerEntries) -> None:
    """Reject a file that widens a model's input.

    Such a file defines another checkpoint, with additional keys that adapters do not have.

    Raises: AdapterError: the file widens the input.
    """
    down, inputs = layer.entries.get("down"), _expected(layer).in_features
    if layer.goal.narrow is None or down is None or len(down.shape) < 2 or down.shape[1] <= inputs:
        return
    raise AdapterError(
        f"{shown(layer.name)} reads {down.shape[1]} channels there and {inputs} in this model: the "
        "file widens the model's input, which no adapter may; serve the checkpoint that it makes"
    )


def check_sizes(layer: LayerEntries) -> None:
    """Validate a layer from the file's header alone, before reading its arrays.

    Raises: AdapterError: parts are missing, redundant or misshapen; or the rank is too high.
    """
    _check_parts(layer)
    sizes, expected, name = _sizes(layer), _expected(layer), shown(layer.name)
    if sizes.shape != expected and not _is_narrow(layer, sizes.shape):
        raise AdapterError(
            f"{name} is a layer {_described(sizes.shape)} there and {_described(expected)} in this "
            f"model: {OTHER_BASE}"
        )
    _check_bias(layer, expected)
    _check_rank(name, sizes.rank, len(layer.goal.layers))


def _is_narrow(layer: LayerEntries, shape: KernelShape) -> bool:
    """Return whether low-rank matrices cover only a layer's first inputs, as in narrower models."""
    narrow = layer.goal.narrow
    return (
        narrow is not None
        and "down" in layer.entries
        and shape == _expected(layer)._replace(in_features=narrow)
    )


def _check_parts(layer: LayerEntries) -> None:
    parts, name = layer.entries, shown(layer.name)
    if empty := [entry for entry in parts.values() if not entry.size]:
        raise AdapterError(f"{shown(empty[0].key)} is empty: its shape is {empty[0].shape}")
    if "full" in parts and ("down" in parts or "up" in parts):
        raise AdapterError(f"{name}: both low-rank matrices and a whole one")
    if ("down" in parts) != ("up" in parts):
        missing = "down (lora_A)" if "up" in parts else "up (lora_B)"
        raise AdapterError(f"{name}: one of its two low-rank matrices is missing, {missing}")
    if parts.keys() == {"alpha"}:
        raise AdapterError(f"{name}: an alpha without low-rank matrices")


def _check_bias(layer: LayerEntries, expected: KernelShape) -> None:
    bias = layer.entries.get("bias")
    if bias is not None and bias.shape != (expected.out_features,):
        raise AdapterError(
            f"{shown(layer.name)}: a bias of shape {bias.shape} for {expected.out_features} "
            f"outputs: {OTHER_BASE}"
        )


def _check_rank(name: str, rank: int, parts: int = 1) -> None:
    """Raise AdapterError if a rank exceeds the maximum, multiplied by the number of parts."""
    if rank > MAX_RANK * parts:
        raise AdapterError(
            f"{name} has rank {rank}, and {MAX_RANK} is the highest that is served: reduce it "
            "(kohya's resize_lora.py does)"
        )


def _sizes(layer: LayerEntries) -> _Sizes:
    parts = layer.entries
    if "full" in parts:
        out, inputs, *window = _matrix(parts["full"])
        return _Sizes(KernelShape(inputs, out, _window(tuple(window))), min(out, inputs))
    if "down" not in parts:
        return _Sizes(_expected(layer), 0)
    down, up = _matrix(parts["down"]), _matrix(parts["up"])
    if up[1] != down[0] or math.prod(up[2:]) != 1:
        raise AdapterError(
            f"{shown(layer.name)}: down of shape {parts['down'].shape} and up of shape "
            f"{parts['up'].shape} do not fit each other"
        )
    return _Sizes(KernelShape(down[1], up[0], _window(down[2:])), down[0])


def _matrix(entry: TensorEntry) -> tuple[int, ...]:
    if len(entry.shape) < 2:
        raise AdapterError(f"{shown(entry.key)} is no matrix: its shape is {entry.shape}")
    return entry.shape


def _window(window: tuple[int, ...]) -> tuple[int, ...]:
    """Return a convolution's window; empty for a 1 x 1 window, which is a linear layer."""
    return window if math.prod(window) > 1 else ()


def _expected(layer: LayerEntries) -> KernelShape:
    """Return the combined sizes of a name's layers in this model."""
    shapes = [*layer.goal.layers.values()]
    out_features = sum(shape.out_features for shape in shapes)
    return KernelShape(shapes[0].in_features, out_features, _window(shapes[0].window))


def _described(shape: KernelShape) -> str:
    window = f", window {'x'.join(map(str, shape.window))}" if shape.window else ""
    return f"from {shape.in_features} to {shape.out_features} features{window}"


def changes_of(
    layer: LayerEntries, file: TensorFile, alphas: Alphas
) -> Iterator[tuple[LayerPosition, LowRank]]:
    """Yield the changes of a name's layers, after `check_sizes`.

    Raises: AdapterError: NaN, infinity or an invalid alpha; or the rank is too high.
    """
    down, up = _matrices(layer, file)
    rank = up.shape[1]
    scale = alphas.of(layer, rank) if "down" in layer.entries else 1.0
    bias, bias_scale = None, alphas.of_bias(layer, rank)
    if "bias" in layer.entries:
        bias = file.stored(layer.entries["bias"])
    if layer.goal.is_swapped:
        up, bias = _swapped(up), None if bias is None else _swapped(bias)
    first = 0
    for place, shape in layer.goal.layers.items():
        rows = slice(first, first + shape.out_features)
        first = rows.stop
        ranks = _used(up[rows]) if len(layer.goal.layers) > 1 else slice(None)
        bias_part = None if bias is None else bias[rows]
        down_part = down[ranks].array.reshape(-1, shape.in_features, *shape.window)
        change = LowRank(StoredArray(down_part), up[rows][:, ranks], scale, bias_part, bias_scale)
        _check_rank(shown(layer.name), change.rank)
        yield place, change


def _matrices(layer: LayerEntries, file: TensorFile) -> tuple[StoredArray, StoredArray]:
    """Return down [rank, in, *window] and up [out, rank].

    A full matrix becomes one of them, with the identity as the other. For a bias alone, both have
    rank 0.
    """
    parts, expected = layer.entries, _expected(layer)
    out, inputs = expected.out_features, expected.in_features
    if "full" in parts:
        full = file.stored(parts["full"])
        if out <= inputs or expected.window:
            _check_rank(shown(layer.name), out)
            return full, StoredArray(np.eye(out, dtype=np.float32))
        _check_rank(shown(layer.name), inputs)
        return StoredArray(np.eye(inputs, dtype=np.float32)), StoredArray(
            full.array.reshape(out, inputs)
        )
    if "down" not in parts:
        shape = (0, inputs, *expected.window)
        return StoredArray(np.zeros(shape, np.float32)), StoredArray(np.zeros((out, 0), np.float32))
    up = file.stored(parts["up"])
    return _widened(file.stored(parts["down"]), inputs), StoredArray(up.array.reshape(up.shape[:2]))


def _widened(down: StoredArray, inputs: int) -> StoredArray:
    """Pad down with zeros for the inputs that it lacks.

    Source: diffusers loaders/lora_pipeline.py, `_maybe_expand_lora_state_dict`.
    """
    more = inputs - down.shape[1]
    if not more:
        return down
    return StoredArray(np.pad(down.array, [(0, 0), (0, more), *[(0, 0)] * (len(down.shape) - 2)]))


def _used(up: StoredArray) -> slice | np.ndarray:
    """Return the ranks that a part of a fused layer uses, if each part has its own ranks.

    Source: kohya's sd-scripts, networks/lora_flux.py, `split_qkv`: up is block-diagonal.
    """
    if up[:FIRST_ROWS].float32().any(axis=0).all():
        return slice(None)
    used = np.flatnonzero(up.float32().any(axis=0))
    return slice(None) if len(used) == up.shape[1] else used


def _swapped(stored: StoredArray) -> StoredArray:
    """Swap the halves of the first axis."""
    return StoredArray(np.roll(stored.array, len(stored.array) // 2, axis=0))
