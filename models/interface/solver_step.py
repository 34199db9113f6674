"""Solver values within a step's values and a row's inputs, distinguished by name prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from models.interface.step_program import StepProgram
from models.sampling.base import Plan, per_row
from models.sampling.solver import History, Latents, Solver, SolverOutput

HISTORY = "history."
_SOLVER = "solver."


def step_values(plan: Plan, index: int) -> dict[str, NDArray[Any] | np.float32]:
    """Return the solver's values of one step, with the solver prefix."""
    return {_SOLVER + name: value for name, value in plan.at(index).items()}


def solver_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Extract the solver's values from a step's values, without the prefix."""
    return _named(values, _SOLVER)


def solver_step(
    program: StepProgram, latents: Latents, output: Latents, history: History, values: Any
) -> SolverOutput:
    """Run one solver step for a batch of rows; noise is passed only if the program uses noise."""
    assert program.solver is not None
    noise = values["noise"] if program.noise else None
    return program.solver.step(latents, output, history, noise, solver_values(values))


def restore_outside_mask(
    stepped: SolverOutput, rows: Mapping[str, Any], values: Mapping[str, Any]
) -> SolverOutput:
    """Reset latents outside the mask to the original image, noised for the next step.

    Args:
        rows: with `mask`, 1 where the image is regenerated; `clean`, the latents of the original
            image; `noise`, the initial noise.
        values: with `clean_scale` and `noise_scale` after this step.

    Source: diffusers pipeline_stable_diffusion_xl_inpaint.py, as Lugmayr et al. 2022 (RePaint), eq.
    8.
    """
    mask, clean, noise = rows["mask"], rows["clean"], rows["noise"]
    clean_scale, noise_scale = (
        per_row(values[name], clean) for name in ("clean_scale", "noise_scale")
    )
    noised = clean_scale * clean + noise_scale * noise
    return stepped._replace(
        latents=(1 - mask) * noised + mask * stepped.latents,
        denoised=(1 - mask) * clean + mask * stepped.denoised,
    )


def solver_key(solver: Solver, plan: Plan) -> str:
    """Return a bucket key, equal for rows with the same history shapes and value names."""
    return f"{solver}{'+noise' if plan.draws.any() else ''}"


def history_key(solver: Solver) -> str:
    """Return a suffix of a flow's bucket key, equal for rows with the same history."""
    return f",{solver}" if _history_names(solver) else ""


def first_history(solver: Solver) -> dict[str, np.ndarray]:
    """Return the inputs that name a solver's history, as empty arrays: `history` fills them."""
    return {HISTORY + name: np.zeros(0, np.float32) for name in _history_names(solver)}


@lru_cache(maxsize=256)  # tracing takes a millisecond per request
def _history_names(solver: Solver) -> tuple[str, ...]:
    leaves: History = jax.eval_shape(solver.begin, jax.ShapeDtypeStruct((1,), np.float32))
    return tuple(leaves)


def history(inputs: Mapping[str, Any], latents: jax.Array) -> dict[str, Any]:
    """Return the solver's history before the first step: zeros with the latents' shape.

    Args:
        inputs: of a row, from `first_history`.
    """
    return {name: jnp.zeros_like(latents) for name in _named(inputs, HISTORY)}


def _named(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the values whose names have that prefix, keyed by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
