"""FLOPs of one step of one image, by the planner's count of the traced program.

The compiler's own `cost_analysis` would not do: it counts a loop's body once, sees nothing of what
kernels of their own do, and counts what a layout computes twice. So the step is traced as one
device would run it, its loops are counted as often as they run, and only its products and
convolutions are: the rest is small, and no chip is rated by it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from models.interface.pipeline import Pipeline, PyTree
from models.interface.step_program import StepProgram
from workers.jaxpr.axis_tags import Tag
from workers.jaxpr.operations import work_of
from workers.programs.bucket_programs import Values
from workers.programs.device_weights import Weights


def step_flops(
    pipeline: Pipeline,
    weights: Weights,
    phase: StepProgram,
    values: Values,
    row: PyTree,
    least: bool = False,
) -> float:
    """Count the FLOPs of one row. Traces, and compiles nothing.

    Args:
        values: one step's, for their names and shapes.
        row: abstract arrays.
        least: whether a step cache has the blocks left out.
    """

    def step(leaves: list[Any], rows: PyTree, values: Any) -> PyTree:
        return pipeline.step(phase, weights.unflatten(leaves), rows, values)

    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), row)
    columns = {
        name: jax.ShapeDtypeStruct((1, *value.shape), np.float32) for name, value in values.items()
    }
    traced = jax.jit(step).trace(jax.tree.map(_bare, weights.common), rows, columns)
    work, _ = work_of(traced.jaxpr, [Tag()] * len(traced.jaxpr.jaxpr.invars), least)
    return work.flops


def _bare(leaf: Any) -> jax.ShapeDtypeStruct:
    """Wherever it lies."""
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
