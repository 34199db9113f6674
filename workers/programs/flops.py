"""FLOPs of one step of one image, counted by the planner from the traced program.

The compiler's `cost_analysis` is unsuitable: it counts a loop's body once, ignores custom kernels,
and counts operations that a layout duplicates. Therefore the step is traced for one device and
loops are counted by their iterations. Only matrix products and convolutions count: the rest is
small, and no chip is rated by it.
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
    step_program: StepProgram,
    values: Values,
    row: PyTree,
    least: bool = False,
) -> float:
    """Count the FLOPs of one row's step by tracing, without compiling.

    Args:
        values: values of one step, for their names and shapes.
        row: abstract arrays.
        least: count a step whose cache skips the blocks.
    """

    def step(leaves: list[Any], rows: PyTree, values: Any) -> PyTree:
        return pipeline.step(step_program, weights.unflatten(leaves), rows, values)

    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), row)
    columns = {
        name: jax.ShapeDtypeStruct((1, *value.shape), np.float32) for name, value in values.items()
    }
    traced = jax.jit(step).trace(jax.tree.map(_bare, weights.common), rows, columns)
    work, _ = work_of(traced.jaxpr, [Tag()] * len(traced.jaxpr.jaxpr.invars), least)
    return work.flops


def _bare(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return a leaf as an abstract array without sharding."""
    return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
