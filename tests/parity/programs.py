"""A pipeline's programs, each compiled once for all requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, PreparedRow, PyTree, split_sound, stack_rows
from models.interface.step_program import StepProgram


class Programs:
    """Loop of `models.interface.pipeline.denoise` for various requests and weights.

    Args:
        options: of the compiler; None for production options.
    """

    def __init__(self, pipeline: Pipeline, options: Mapping[str, Any] | None = None) -> None:
        self.pipeline = pipeline
        jit_options = {"compiler_options": None if options is None else dict(options)}
        self.encode = jax.jit(pipeline.encode, **jit_options)
        self.step = jax.jit(self._step, static_argnums=0, **jit_options)
        self.decode = jax.jit(pipeline.decode, **jit_options)

    def _step(self, program: StepProgram, weights: PyTree, row: PyTree, values: PyTree) -> PyTree:
        rows = self.pipeline.step(program, weights, stack_rows([row]), values)
        return jax.tree.map(lambda leaf: leaf[0], rows)

    def denoise(
        self,
        prepared: PreparedRow,
        weights: PyTree | None = None,
        spoil: Callable[[PyTree], PyTree] = lambda row: row,
    ) -> Iterator[PyTree]:
        """Yield the row after encoding and after each step.

        Args:
            weights: None for the pipeline's own.
            spoil: function that corrupts the row after encoding.
        """
        weights = self.pipeline.weights if weights is None else weights
        row = spoil(self.encode(weights, dict(prepared.inputs)))
        yield row
        for step in prepared.steps:
            values = {
                name: np.asarray(value, np.float32)[None] for name, value in step.values.items()
            }
            row = self.step(step.program, weights, row, values)
            yield row

    def drawn(
        self,
        prepared: PreparedRow,
        weights: PyTree | None = None,
        spoil: Callable[[PyTree], PyTree] = lambda row: row,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Latents after each step, and pixels; the arguments are those of `denoise`."""
        weights = self.pipeline.weights if weights is None else weights
        _, *rows = self.denoise(prepared, weights, spoil)
        pixels = np.asarray(split_sound(self.decode(weights, rows[-1]))[0])
        return [np.asarray(row["latents"]) for row in rows], pixels
