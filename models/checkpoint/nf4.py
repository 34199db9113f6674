"""Weights in NF4, the 4-bit numbers of bitsandbytes, with a scale for each block of a row.

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

KIND = "NF4"
STATE = ".quant_state.bitsandbytes__nf4"
"""Key ending of the JSON about a weight."""
ABSMAX = ".absmax"
"""Key ending of the scales of blocks."""
PARTS = (STATE, ABSMAX, ".quant_map", ".nested_absmax", ".nested_quant_map")
MAX_AXES = 8


def with_nf4(
    tensors: Mapping[str, Tensor], parsed: Callable[[Tensor], Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Return the tensors with weights in NF4 in place of their parts.

    Args:
        parsed: reads the JSON in a tensor; raises CheckpointError.

    Raises:
        UnsupportedCheckpoint: blocks across rows, or scales that are quantized, too.
        CheckpointError: parts that do not fit each other.
    """
    names = [key.removesuffix(STATE) for key in tensors if key.endswith(STATE)]
    weights = {name: _weight(name, tensors, parsed(tensors[name + STATE])) for name in names}
    parts = {name + ending for name in names for ending in PARTS}
    return {key: weights.get(key, tensor) for key, tensor in tensors.items() if key not in parts}


def _weight(name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Tensor:
    """Return an NF4 weight with its scales. Raises: as `with_nf4`."""
    codes, scales = tensors.get(name), tensors.get(name + ABSMAX)
    if codes is None or scales is None:
        raise CheckpointError(f"{name}: NF4 without its numbers or their scales; fetch it again")
    shape, size = _shape(codes, state), state.get("blocksize")
    if name + ".nested_absmax" in tensors or not scales.is_float:
        raise UnsupportedCheckpoint(
            f"{codes.path}: NF4 with quantized scales is not read ({codes.key}); take a file "
            "without double quantization"
        )
    columns = math.prod(shape[1:])
    if type(size) is not int or size < 1 or columns % size:
        raise UnsupportedCheckpoint(
            f"{codes.path}: NF4 with blocks of {size!r} numbers in rows of {columns} is not read "
            f"({codes.key})"
        )
    blocks = (shape[0], columns // size)
    if math.prod(scales.shape) != math.prod(blocks):
        raise CheckpointError(f"{codes.path}: {scales.key} has not one scale for each block")
    return replace(codes, shape=shape, kind=KIND, scale=replace(scales, shape=blocks))


def _shape(codes: Tensor, state: Mapping[str, Any]) -> tuple[int, ...]:
    """Return an NF4 weight's shape. Raises: CheckpointError: another number of codes."""
    stored = state.get("shape")
    shape = tuple(stored) if isinstance(stored, list) else ()
    is_shape = 0 < len(shape) <= MAX_AXES and all(type(size) is int and size > 0 for size in shape)
    if is_shape and codes.kind == "U8" and math.prod(shape) == 2 * math.prod(codes.shape):
        return shape
    raise CheckpointError(f"{codes.path}: {codes.key} has not the numbers of its shape {stored!r}")
