"""Step table of an image: inputs of network and scheduler for each step, and the added noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.interface.pipeline import Step
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan, Scheduler
from models.sdxl.initial_latents import Draws
from models.sdxl.request import SdxlRequest
from models.spec.model_spec import Task
from models.spec.option import OptionError
from models.spec.request import RequestError


def plan_of(request: SdxlRequest, scheduler: Scheduler, task: Task) -> Plan:
    """Plan a request's schedule; image tasks skip steps by `strength`. Raises: RequestError."""
    lists = {
        name: getattr(request, name)
        for name in ("timesteps", "sigmas")
        if getattr(request, name) is not None
    }
    strength = None if task == "text-to-image" else request.strength
    try:
        return scheduler.plan(request.num_inference_steps, **lists, strength=strength)
    except OptionError as error:
        raise RequestError.of_scheduler(error) from error


def steps_of(
    request: SdxlRequest, plan: Plan, programs: Sequence[StepProgram], draws: Draws
) -> tuple[Step, ...]:
    """Return one `Step` per program of a plan; draws noise for steps that need it."""
    return tuple(
        Step(program, _values(request, plan, i, draws)) for i, program in enumerate(programs)
    )


def _values(
    request: SdxlRequest, plan: Plan, i: int, draws: Draws
) -> dict[str, np.ndarray | np.float32]:
    values: dict[str, np.ndarray | np.float32] = {
        "timestep": plan.timesteps[i],
        "input_scale": plan.input_scale[i],
        "guidance_scale": np.float32(request.guidance_scale),
        "guidance_rescale": np.float32(request.guidance_rescale),
        # scales of the preserved part of the image after this step
        "clean_scale": plan.clean_scale[i + 1],
        "noise_scale": plan.noise_scale[i + 1],
        **step_values(plan, i),
    }
    if plan.draws.any():
        shape = (draws.h, draws.w, draws.channels)
        values["noise"] = draws.noise() if plan.draws[i] else np.zeros(shape, np.float32)
    return values
