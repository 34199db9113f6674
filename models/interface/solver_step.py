"""The scheduler's own numbers among a family's: in a step's values, and in a row's first inputs.

The beginnings of their names tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from models.interface.step_program import StepProgram
from models.sampling.base import Plan, per_row
from models.sampling.solver import History, Latents, Solver, Stepped

HISTORY = "history."
_SOLVER = "solver."


def step_values(plan: Plan, index: int) -> dict[str, NDArray | np.float32]:
    """Return the values of one step for the solver."""
    return {_SOLVER + name: value for name, value in plan.at(index).items()}


def solver_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, by the scheduler's names, of a step's values."""
    return _named(values, _SOLVER)


def solver_step(
    program: StepProgram, latents: Latents, output: Latents, history: History, values: Any
) -> Stepped:
    """Run one step of the program's solver on rows and their values; noise only if it has some."""
    assert program.solver is not None
    noise = values["noise"] if program.noise else None
    return program.solver.step(latents, output, history, noise, solver_values(values))


def around_the_mask(
    stepped: Stepped, rows: Mapping[str, Any], values: Mapping[str, Any]
) -> Stepped:
    """Return to the image that is kept outside a mask, as noisy as the next step expects it.

    Args:
        rows: with mask, 1 where the image is drawn anew; clean, the kept image's latents; and
            noise, the first one.
        values: with clean_scale and noise_scale, after this step.

    Source: diffusers pipeline_stable_diffusion_xl_inpaint.py, as Lugmayr et al. 2022 (RePaint),
    eq. 8.
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
    """Return a key for buckets: equal where rows have the same history and the same values."""
    return f"{solver}{'+noise' if plan.draws.any() else ''}"


def first_history(solver: Solver, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return a solver's history before the first step, all zeros.

    Args:
        shape: of the latents.
    """
    leaves = _history_leaves(solver, shape)
    return {HISTORY + name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}


@lru_cache(maxsize=256)  # tracing takes a millisecond, and every request asks
def _history_leaves(solver: Solver, shape: tuple[int, ...]) -> Mapping[str, jax.ShapeDtypeStruct]:
    leaves: Mapping[str, jax.ShapeDtypeStruct] = jax.eval_shape(
        solver.begin, jax.ShapeDtypeStruct(shape, np.float32)
    )
    return leaves


def history(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same, by the scheduler's names, of a row's first inputs."""
    return _named(inputs, HISTORY)


def _named(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The values whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
