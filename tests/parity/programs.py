"""A pipeline's programs, each compiled once, whatever is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, Prepared, PyTree, parted, stack_rows
from models.interface.step_program import StepProgram


class Programs:
    """The loop of `models.interface.pipeline.denoise`, of requests and weights by turns.

    Args:
        options: of the compiler; None: as users compile.
    """

    def __init__(self, pipeline: Pipeline, options: Mapping[str, Any] | None = None) -> None:
        self.pipeline = pipeline
        given = {"compiler_options": None if options is None else dict(options)}
        self.encode = jax.jit(pipeline.encode, **given)
        self.step = jax.jit(self._step, static_argnums=0, **given)
        self.decode = jax.jit(pipeline.decode, **given)

    def _step(self, phase: StepProgram, weights: PyTree, row: PyTree, values: PyTree) -> PyTree:
        rows = self.pipeline.step(phase, weights, stack_rows([row]), values)
        return jax.tree.map(lambda leaf: leaf[0], rows)

    def denoise(
        self,
        prepared: Prepared,
        weights: PyTree | None = None,
        spoil: Callable[[PyTree], PyTree] = lambda row: row,
    ) -> Iterator[PyTree]:
        """The row after encoding and after each step.

        Args:
            weights: None: the pipeline's own.
            spoil: what goes wrong with the row after encoding.
        """
        weights = self.pipeline.weights if weights is None else weights
        row = spoil(self.encode(weights, dict(prepared.inputs)))
        yield row
        for step in prepared.steps:
            values = {
                name: np.asarray(value, np.float32)[None] for name, value in step.values.items()
            }
            row = self.step(step.phase, weights, row, values)
            yield row

    def drawn(
        self,
        prepared: Prepared,
        weights: PyTree | None = None,
        spoil: Callable[[PyTree], PyTree] = lambda row: row,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Latents after each step, and pixels; arguments as of `denoise`."""
        weights = self.pipeline.weights if weights is None else weights
        _, *rows = self.denoise(prepared, weights, spoil)
        pixels = np.asarray(parted(self.decode(weights, rows[-1]))[0])
        return [np.asarray(row["latents"]) for row in rows], pixels
