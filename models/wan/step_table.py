"""The table of steps: which expert takes each, and what it and the scheduler are told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.interface.pipeline import RequestError, Step
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan, Scheduler
from models.sampling.solver import Solver
from models.wan.experts import Experts
from models.wan.request import WanRequest


def plan_of(request: WanRequest, scheduler: Scheduler) -> Plan:
    """Return the scheduler's plan for a request.

    Raises: RequestError: the scheduler cannot divide its schedule into that many steps.
    """
    try:
        return scheduler.plan(request.num_inference_steps)
    except ValueError as error:
        field = "num_inference_steps" if request.scheduler is None else "scheduler"
        raise RequestError(field, str(error)) from error


def phases_of(
    request: WanRequest, plan: Plan, experts: Experts, solver: Solver
) -> tuple[StepProgram, ...]:
    """Return the program of each step.

    Raises: RequestError: a step is that of an expert which the checkpoint does not have.
    """
    try:
        chosen = [experts.at(timestep) for timestep in plan.timesteps]
    except ValueError as error:
        raise RequestError("num_inference_steps", str(error)) from error
    noise = bool(plan.draws.any())
    return tuple(StepProgram(expert, request.guided, solver, noise) for expert in chosen)


def steps_of(
    request: WanRequest, plan: Plan, phases: tuple[StepProgram, ...], draw: Callable[[], NDArray]
) -> tuple[Step, ...]:
    """Return an entry a step.

    Args:
        draw: the generator's next noise, for schedulers that add some.
    """
    return tuple(
        Step(phase, _values(request, plan, index, phase) | _noise(plan, index, draw))
        for index, phase in enumerate(phases)
    )


def _values(
    request: WanRequest, plan: Plan, index: int, phase: StepProgram
) -> dict[str, NDArray | np.float32]:
    return {
        "timestep": plan.timesteps[index],
        "guidance_scale": np.float32(request.scale_of(phase.network)),
        **step_values(plan, index),
    }


def _noise(plan: Plan, index: int, draw: Callable[[], NDArray]) -> dict[str, NDArray | np.float32]:
    """Noise for every step of a plan where any draws some, since all steps have equal names."""
    if not plan.draws.any():
        return {}
    noise = draw()
    return {"noise": noise if plan.draws[index] else np.zeros_like(noise)}
