"""Step table of a video: expert, network inputs and scheduler inputs of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.interface.pipeline import Step
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan, Scheduler
from models.sampling.solver import Solver
from models.spec.option import OptionError
from models.spec.request import RequestError
from models.wan.experts import Experts
from models.wan.request import WanRequest


def plan_of(request: WanRequest, scheduler: Scheduler) -> Plan:
    """Return the scheduler's plan for a request.

    Raises: RequestError: the scheduler does not support this number of steps, or its options.
    """
    try:
        return scheduler.plan(request.num_inference_steps)
    except OptionError as error:
        raise RequestError.of_scheduler(error) from error


def step_programs_of(
    request: WanRequest, plan: Plan, experts: Experts, solver: Solver
) -> tuple[StepProgram, ...]:
    """Return the step program of each step, which names its expert.

    Raises: RequestError: a step needs an expert that the checkpoint does not have.
    """
    try:
        chosen = [experts.at(timestep) for timestep in plan.timesteps]
    except ValueError as error:
        raise RequestError("num_inference_steps", str(error)) from error
    noise = bool(plan.draws.any())
    return tuple(StepProgram(expert, request.guided, solver, noise) for expert in chosen)


def steps_of(
    request: WanRequest,
    plan: Plan,
    programs: tuple[StepProgram, ...],
    draw: Callable[[], NDArray[Any]],
) -> tuple[Step, ...]:
    """Return one `Step` per program of a video's plan.

    Args:
        draw: returns the generator's next noise, for schedulers that add noise.
    """
    return tuple(
        Step(program, _values(request, plan, index, program) | _noise(plan, index, draw))
        for index, program in enumerate(programs)
    )


def _values(
    request: WanRequest, plan: Plan, index: int, program: StepProgram
) -> dict[str, NDArray[Any] | np.float32]:
    return {
        "timestep": plan.timesteps[index],
        "guidance_scale": np.float32(request.scale_of(program.network)),
        **step_values(plan, index),
    }


def _noise(
    plan: Plan, index: int, draw: Callable[[], NDArray[Any]]
) -> dict[str, NDArray[Any] | np.float32]:
    """Return a step's noise; zeros if only other steps draw noise: all steps have equal keys."""
    if not plan.draws.any():
        return {}
    noise = draw()
    return {"noise": noise if plan.draws[index] else np.zeros_like(noise)}
