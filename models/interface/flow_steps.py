"""Schedules and step tables of flow models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from models.interface.pipeline import Step
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_choice import flow_scheduler
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.option import OptionError
from models.spec.request import FlowRequest, RequestError

StepValues = float | Sequence[float] | np.ndarray
"""A value per step, or a single value for all steps."""


def scheduler_of(request: FlowRequest, default: FlowMatchEuler) -> FlowMatchEuler:
    """Return the request's scheduler; without one, the checkpoint's. Raises: RequestError."""
    try:
        return flow_scheduler(default, request.scheduler)
    except OptionError as error:
        raise RequestError.of_scheduler(error) from error


def flow_plan(
    request: FlowRequest,
    scheduler: FlowMatchEuler,
    tokens: int,
    strength: float | None = None,
    mu: float | None = None,
) -> Plan:
    """Return the schedule of a flow-matching model; image-to-image skips its first steps.

    Args:
        tokens: of the packed latents, which determine a dynamic shift.
        strength: of image-to-image; None: start from noise.
        mu: dynamic shift computed by the family; None: the config's.

    Raises: RequestError: names the field.
    """
    steps, sigmas = request.num_inference_steps, request.sigmas
    try:
        return scheduler.plan(steps, sigmas=sigmas, strength=strength, tokens=tokens, mu=mu)
    except OptionError as error:
        raise RequestError.of_scheduler(error) from error


def flow_steps(
    request: FlowRequest,
    plan: Plan,
    solver: Solver,
    times: Float32[np.ndarray, " steps"] | None = None,
    guided: Sequence[bool] | None = None,
    **values: StepValues,
) -> tuple[Step, ...]:
    """Return the table of steps of a flow-matching model.

    Args:
        times: the network's time input per step; None: `times_of`.
        guided: whether each step is guided; None: all steps, if the request is guided.
        values: further inputs, besides the request's scales: a value per step, or one for all.
    """
    guided = [request.guided] * len(plan) if guided is None else guided
    programs = [StepProgram("transformer", is_guided, solver) for is_guided in guided]
    timestep = times_of(plan) if times is None else times
    return step_table(plan, programs, timestep=timestep, **request.scales, **values)


def times_of(plan: Plan) -> Float32[np.ndarray, " steps"]:
    """Return the network's times of the steps, 0 to 1000, rounded as in diffusers.

    Diffusers divides by 1000 before the network and multiplies inside it.
    """
    thousand = np.float32(1000)
    return plan.timesteps / thousand * thousand


def step_table(
    plan: Plan, programs: Sequence[StepProgram], **values: StepValues
) -> tuple[Step, ...]:
    """Return the table of denoising steps, one per step of the schedule.

    Args:
        programs: one per step.
        values: inputs of the network and of guidance: a value per step, or one for all.
    """
    columns = {
        name: np.broadcast_to(np.asarray(value, np.float32), len(plan))
        for name, value in values.items()
    }
    return tuple(
        Step(
            program,
            {**{name: column[i] for name, column in columns.items()}, **step_values(plan, i)},
        )
        for i, program in enumerate(programs)
    )


def preserved_scales(plan: Plan) -> Mapping[str, Float32[np.ndarray, " steps"]]:
    """Return the scales of the image outside a mask, after each step."""
    return {"clean_scale": plan.clean_scale[1:], "noise_scale": plan.noise_scale[1:]}
