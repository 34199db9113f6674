"""Conditions: what a row's next steps are told by time and prompt alone, computed ahead of them.

So many steps at once, whatever a request has in all: one program serves every request, the
parameters that only this needs are read once for all of these steps, and a row never holds more.
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
"""Computed at once. Parameters are read a sixteenth as often as by each step; more would not save
much, and Flux-dev has 2 MB a step and row."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of some steps of one row and phase."""

    phase: StepProgram
    first: int
    """The step that they begin with; a multiple of `STEPS`, so that a row that goes on from a
    snapshot is told the same to the last bit."""
    tree: PyTree
    """Leaves on the device [STEPS, …]."""

    def serve(self, phase: StepProgram, step: int) -> bool:
        """Return whether these are the conditions of that step."""
        return self.phase == phase and self.first == first(step)


def computed(
    program: Program, weights: list[jax.Array], row: PyTree, steps: Sequence[Step], at: int
) -> Conditions:
    """Compute the conditions of step `at` and those beside it, on the device.

    Args:
        row: on the device, as it is before any of them.
    """
    phase, start = steps[at].phase, first(at)
    shown = [step if step.phase == phase else steps[at] for step in steps[start : start + STEPS]]
    shown += [steps[at]] * (STEPS - len(shown))  # nobody asks for these
    return Conditions(phase, start, program(weights, row, columns([step.values for step in shown])))


def first(step: int) -> int:
    """Return the first of the steps that are computed together with this one."""
    return step - place(step)


def place(step: int) -> int:
    """Return the index of a step among those that are computed together."""
    return step % STEPS


def columns(values: Sequence[Values]) -> Mapping[str, np.ndarray]:
    """Stack values of several steps, or rows: by name, with a new leading axis, float32."""
    return {name: np.stack([one[name] for one in values], dtype=np.float32) for name in values[0]}


def gather_steps(trees: Sequence[PyTree], places: Int[Array, " batch"]) -> PyTree:
    """Gather each row's conditions of its own next step, stacked on a leading row axis.

    Args:
        trees: leaves [STEPS, …].
        places: which of those steps.
    """

    def at(tree: PyTree, place: Int[Array, ""]) -> PyTree:
        return jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, place, keepdims=False), tree
        )

    return stack_rows(
        [at(tree, place) for tree, place in zip(trees, jnp.unstack(places), strict=True)]
    )
