"""Weights in NF4 and FP4, the 4-bit numbers of bitsandbytes, with a scale for each block of a row.

Source: Dettmers et al. 2023 (QLoRA), appendix E, for the numbers; bitsandbytes, functional.py
(class QuantState), for the keys. The first of two numbers has the high bits of a byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.tensor import Tensor

STATES = {f".quant_state.bitsandbytes__{kind.lower()}": kind for kind in ("NF4", "FP4")}
"""Key endings of the JSON about a weight → its format."""
ABSMAX = ".absmax"
"""Key ending of the scales of blocks."""
PARTS = (*STATES, ABSMAX, ".quant_map", ".nested_absmax", ".nested_quant_map")
MAX_AXES = 8


def with_nf4(
    tensors: Mapping[str, Tensor], parsed: Callable[[Tensor], Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Return the tensors with weights in NF4 and FP4 in place of their parts.

    Args:
        parsed: reads the JSON in a tensor; raises CheckpointError.

    Raises:
        UnsupportedCheckpoint: blocks across rows, or scales that are quantized, too.
        CheckpointError: parts that do not fit each other.
    """
    weights = {
        (name := key.removesuffix(ending)): _weight(name, kind, tensors, parsed(state))
        for key, state in tensors.items()
        for ending, kind in STATES.items()
        if key.endswith(ending)
    }
    parts = {name + ending for name in weights for ending in PARTS}
    return {key: weights.get(key, tensor) for key, tensor in tensors.items() if key not in parts}


def _weight(
    name: str, kind: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Tensor:
    """Return a 4-bit weight with its scales. Raises: as `with_nf4`."""
    codes, scales = tensors.get(name), tensors.get(name + ABSMAX)
    if codes is None or scales is None:
        raise CheckpointError(f"{name}: {kind} without its numbers or their scales; fetch it again")
    shape, size = _shape(codes, state), state.get("blocksize")
    if name + ".nested_absmax" in tensors or not scales.is_float:
        raise UnsupportedCheckpoint(
            f"{codes.path}: {kind} with quantized scales is not read ({codes.key}); take a file "
            "without double quantization"
        )
    columns = math.prod(shape[1:])
    if type(size) is not int or size < 1 or columns % size:
        raise UnsupportedCheckpoint(
            f"{codes.path}: {kind} with blocks of {size!r} numbers in rows of {columns} is not "
            f"read ({codes.key})"
        )
    blocks = (shape[0], columns // size)
    if math.prod(scales.shape) != math.prod(blocks):
        raise CheckpointError(f"{codes.path}: {scales.key} has not one scale for each block")
    return replace(codes, shape=shape, kind=kind, scale=replace(scales, shape=blocks))


def _shape(codes: Tensor, state: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a 4-bit weight's shape. Raises: CheckpointError: another number of codes."""
    stored = state.get("shape")
    shape = tuple(stored) if isinstance(stored, list) else ()
    is_shape = 0 < len(shape) <= MAX_AXES and all(type(size) is int and size > 0 for size in shape)
    if is_shape and codes.kind == "U8" and math.prod(shape) == 2 * math.prod(codes.shape):
        return shape
    raise CheckpointError(f"{codes.path}: {codes.key} has not the numbers of its shape {stored!r}")
