"""Precomputed modulations of a row's next steps, which depend only on time and prompt.

A fixed number of steps is computed at once, so one program serves every request. The parameters
used only here are read once for all of these steps, and memory per row is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from models.interface.pipeline import PyTree, Step, stack_rows
from models.interface.step_program import StepProgram
from workers.programs.bucket_programs import Program, Values

STEPS = 16
"""Steps computed at once. Parameters are read a sixteenth as often as by each step; more would save
little, and Flux-dev has 2 MB per step and row."""


@dataclass(frozen=True)
class Modulations:
    """Modulations of consecutive steps of one row and step kind."""

    step_program: StepProgram
    group_start: int
    """Index of the first step; a multiple of `STEPS`, so that a row resumed from a snapshot gets
    identical bits."""
    tree: PyTree
    """Modulations on the device, leaves [STEPS, …]."""

    def serve(self, step_program: StepProgram, step: int) -> bool:
        """Return whether these modulations include those of the given step."""
        return self.step_program == step_program and self.group_start == group_start(step)


def precompute(
    program: Program, weights: list[jax.Array], row: PyTree, steps: Sequence[Step], at: int
) -> Modulations:
    """Compute the modulations of step `at` and the other steps of its group, on the device.

    Args:
        row: on the device, in its state before the group's steps.
    """
    step_program, start = steps[at].program, group_start(at)
    group = [
        step if step.program == step_program else steps[at] for step in steps[start : start + STEPS]
    ]
    group += [steps[at]] * (STEPS - len(group))  # padding, never used
    return Modulations(
        step_program, start, program(weights, row, columns([step.values for step in group]))
    )


def group_start(step: int) -> int:
    """Return the first step of the group whose modulations are computed with this step's."""
    return step - index_in_group(step)


def index_in_group(step: int) -> int:
    """Return the index of a step in its group of precomputed modulations."""
    return step % STEPS


def columns(values: Sequence[Values]) -> Mapping[str, np.ndarray]:
    """Stack values of several steps or rows by name, on a new leading axis, float32."""
    return {
        name: np.stack([row_values[name] for row_values in values], dtype=np.float32)
        for name in values[0]
    }


def gather_steps(trees: Sequence[PyTree], indices: Int[Array, " batch"]) -> PyTree:
    """Select each row's modulations of its next step, stacked on a leading row axis.

    Args:
        trees: leaves [STEPS, …].
        indices: index of the step for each row.
    """

    def at(tree: PyTree, index: Int[Array, ""]) -> PyTree:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), tree
        )

    return stack_rows(
        [at(tree, index) for tree, index in zip(trees, jnp.unstack(indices), strict=True)]
    )
