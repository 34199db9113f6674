"""Wrappers of programs that sizes of one token bucket share, for rows of any of these sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from models.interface.pipeline import PyTree
from models.interface.token_buckets import OF_SIZE, shared_inputs, shared_row, size_leaves
from workers.programs.bucket_programs import Program


def encoding_any_size(program: Program, owner: Any) -> Program:
    """Wrap a shared encode program: (weights, inputs, …) → row including its size's own leaves.

    Args:
        owner: object kept alive as long as the program, so that other sizes can find it.
    """

    @wraps(program)
    def encode(weights: list[Any], inputs: Mapping[str, np.ndarray], *recall: Any) -> PyTree:
        return program(weights, shared_inputs(inputs), *recall) | size_leaves(inputs)

    encode.owner = owner  # type: ignore[attr-defined]
    return encode


def conditioning_any_size(program: Program) -> Program:
    """Wrap a shared modulation program: (weights, row, values) → modulations."""

    @wraps(program)
    def modulations(weights: list[Any], row: PyTree, values: Mapping[str, Any]) -> PyTree:
        return program(weights, shared_row(row), values)

    return modulations


def stepping_any_size(program: Program) -> Program:
    """Wrap a shared step: (weights, rows, values, …) → (rows, digests).

    Rows keep the leaves specific to their size.
    """

    @wraps(program)
    def step(weights: list[Any], rows: Sequence[PyTree], *more: Any) -> tuple[Any, ...]:
        after, digests = program(weights, tuple(map(shared_row, rows)), *more)
        pairs = zip(after, rows, strict=True)
        return tuple({**new, OF_SIZE: row[OF_SIZE]} for new, row in pairs), digests

    return step
