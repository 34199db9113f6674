"""Planning of base and refiner steps in one image.

Source: diffusers' StableDiffusionXLPipeline with `denoising_end`, then
StableDiffusionXLImg2ImgPipeline with `denoising_start` on its latents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from models.sampling.base import Plan, Scheduler
from models.sampling.registry import EVALUATIONS
from models.sdxl.request import SdxlRequest
from models.sdxl.step_table import plan_of
from models.spec.model_spec import Task
from models.spec.request import RequestError

REFINER = "refiner"
"""Name of the network that runs the last steps."""
PREFIX = "refiner_"
"""Prefix of the refiner's inputs, leaves and encoders."""
TASKS: tuple[Task, ...] = ("text-to-image", "image-to-image")
"""Tasks with a refiner; excludes inpainting, where diffusers leaves noise around the mask."""


class RefinerInputs(NamedTuple):
    """Refiner's part of a request: inputs of `encode`, and their part of the bucket key."""

    inputs: Mapping[str, np.ndarray]
    key: str


NO_REFINER = RefinerInputs({}, "")


def uses_refiner(request: SdxlRequest, task: Task) -> bool:
    """Return whether the refiner runs some of a request's steps."""
    return request.refiner is not None and request.refiner.switch < 1 and task in TASKS


class RefinedPlan(NamedTuple):
    """Plan of one image's steps, the last of which the refiner runs."""

    plan: Plan
    base_steps: int
    """Number of steps before the refiner's."""

    def network(self, step: int) -> str:
        """Return the name of the network that runs a step."""
        return "unet" if step < self.base_steps else REFINER


def plan_with_refiner(
    request: SdxlRequest, scheduler: Scheduler, task: Task, trained: Mapping[str, Any]
) -> RefinedPlan:
    """Plan the steps of both networks; the refiner starts a new multistep history.

    Args:
        trained: scheduler options that differ for the refiner.

    Raises: RequestError: as `plan_of`.
    """
    plan = plan_of(request, scheduler, task)
    if request.refiner is None or not uses_refiner(request, task):
        return RefinedPlan(plan, len(plan))
    _check_evaluations(scheduler)
    count = _train_timesteps(scheduler)
    cutoff = round(count - request.refiner.switch * count)
    base_steps = int((plan.timesteps >= cutoff).sum())
    if base_steps == len(plan):
        return RefinedPlan(plan, base_steps)
    rest = _rest(request, _as_trained(scheduler, trained), task, plan.timesteps[base_steps:])
    return RefinedPlan(joined(plan, base_steps, rest), base_steps)


def _check_evaluations(scheduler: Scheduler) -> None:
    """Check that every step is one evaluation, so that the refiner begins with a whole step.

    Raises: RequestError: names the scheduler.
    """
    if scheduler.name in EVALUATIONS:
        raise RequestError(
            "scheduler",
            f"{scheduler.name} evaluates the network more than once in some steps, which a refiner "
            "cannot continue; choose another scheduler, or leave out refiner",
        )


def _train_timesteps(scheduler: Any) -> int:
    count: int = scheduler.num_train_timesteps
    return count


def _as_trained(scheduler: Any, trained: Mapping[str, Any]) -> Scheduler:
    changed: Scheduler = replace(scheduler, **trained)
    return changed


def _rest(request: SdxlRequest, scheduler: Scheduler, task: Task, timesteps: np.ndarray) -> Plan:
    """Return the refiner's plan of the remaining steps, which start at these timesteps.

    Raises: RequestError: the scheduler cannot start at these timesteps.
    """
    total = len(plan_of(request, scheduler, "text-to-image"))
    if total == len(timesteps):
        return plan_of(request, scheduler, "text-to-image")
    by_count = request.timesteps is None and request.sigmas is None
    steps = request.num_inference_steps if by_count else total
    left = steps - (total - len(timesteps))
    later = replace(request, strength=(left + 0.5) / steps)  # rounding margin
    rest = plan_of(later, scheduler, "image-to-image")
    if not np.array_equal(rest.timesteps, timesteps):
        raise RequestError("scheduler", f"{scheduler.name} cannot begin in the middle of its steps")
    return rest


def joined(first: Plan, count: int, rest: Plan) -> Plan:
    """Concatenate the first `count` steps of one step table with all steps of another."""
    return Plan(
        timesteps=np.concatenate([first.timesteps[:count], rest.timesteps]),
        input_scale=np.concatenate([first.input_scale[:count], rest.input_scale]),
        values={
            name: np.concatenate([column[:count], rest.values[name]])
            for name, column in first.values.items()
        },
        draws=np.concatenate([first.draws[:count], rest.draws]),
        init_noise_sigma=first.init_noise_sigma,
        clean_scale=np.concatenate([first.clean_scale[:count], rest.clean_scale]),
        noise_scale=np.concatenate([first.noise_scale[:count], rest.noise_scale]),
    )
