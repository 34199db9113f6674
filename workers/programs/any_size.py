"""Programs that sizes of a bucket of tokens share, called with rows and inputs of any one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from models.interface.pipeline import PyTree
from models.interface.token_buckets import OF_SIZE, shared_inputs, shared_row, size_leaves
from workers.programs.bucket_programs import Program


def encoding_any_size(program: Program, owner: Any) -> Program:
    """Return (weights, inputs) → row of a program that neither takes nor gives what is of a size.

    Args:
        owner: kept alive with the program, for other sizes to find.
    """

    @wraps(program)
    def encode(weights: list[Any], inputs: Mapping[str, np.ndarray]) -> PyTree:
        return program(weights, shared_inputs(inputs)) | size_leaves(inputs)

    encode.owner = owner  # type: ignore[attr-defined]
    return encode


def conditioning_any_size(program: Program) -> Program:
    """Return (weights, row, values) → conditions."""

    @wraps(program)
    def conditions(weights: list[Any], row: PyTree, values: Mapping[str, Any]) -> PyTree:
        return program(weights, shared_row(row), values)

    return conditions


def stepping_any_size(program: Program) -> Program:
    """Return (weights, rows, values, …) → (rows, finite), each row with what is of its own size."""

    @wraps(program)
    def step(weights: list[Any], rows: Sequence[PyTree], *more: Any) -> tuple[Any, ...]:
        after, finite = program(weights, tuple(map(shared_row, rows)), *more)
        pairs = zip(after, rows, strict=True)
        return tuple({**new, OF_SIZE: row[OF_SIZE]} for new, row in pairs), finite

    return step
