"""A refiner beside a base model: which steps are its own, and how they are planned.

Source: diffusers' StableDiffusionXLPipeline with `denoising_end`, whose latents go on in
StableDiffusionXLImg2ImgPipeline with `denoising_start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from models.interface.pipeline import RequestError
from models.sampling.base import Plan, Scheduler
from models.sdxl.request import SdxlRequest
from models.sdxl.step_table import plan_of
from models.spec.model_spec import Task

REFINER = "refiner"
"""Network that takes the last steps."""
PREFIX = "refiner_"
"""Beginning of the names of its inputs, leaves and encoders."""
TASKS: tuple[Task, ...] = ("text-to-image", "image-to-image")
"""Tasks in which it goes on: with a mask diffusers' has noise left around it."""


class Refining(NamedTuple):
    """Refiner's share of a request: inputs of `encode`, and their part of the row's bucket."""

    inputs: Mapping[str, np.ndarray]
    key: str


NOT_REFINED = Refining({}, "")


def refines(request: SdxlRequest, task: Task) -> bool:
    """Return whether a refiner may take some steps."""
    return request.refiner is not None and request.refiner.switch < 1 and task in TASKS


class Relay(NamedTuple):
    """Plan of one image whose last steps are another network's."""

    plan: Plan
    base_steps: int
    """Number of steps before the refiner's."""

    def network(self, step: int) -> str:
        """Return the network of a step."""
        return "unet" if step < self.base_steps else REFINER


def relayed(
    request: SdxlRequest, scheduler: Scheduler, task: Task, trained: Mapping[str, Any]
) -> Relay:
    """Plan the steps of both networks; a refiner's begin a multistep history of their own.

    Args:
        trained: options of the scheduler that differ for the refiner.

    Raises: RequestError: as `plan_of`.
    """
    whole = plan_of(request, scheduler, task)
    if request.refiner is None or not refines(request, task):
        return Relay(whole, len(whole))
    count = _train_timesteps(scheduler)
    cutoff = round(count - request.refiner.switch * count)
    own = int((whole.timesteps >= cutoff).sum())
    if own == len(whole):
        return Relay(whole, own)
    rest = _rest(request, _as_trained(scheduler, trained), task, whole.timesteps[own:])
    return Relay(joined(whole, own, rest), own)


def _train_timesteps(scheduler: Any) -> int:
    count: int = scheduler.num_train_timesteps
    return count


def _as_trained(scheduler: Any, trained: Mapping[str, Any]) -> Scheduler:
    changed: Scheduler = replace(scheduler, **trained)
    return changed


def _rest(request: SdxlRequest, scheduler: Scheduler, task: Task, timesteps: np.ndarray) -> Plan:
    """Return the plan of the last steps, which begins with these timesteps.

    Raises: RequestError: the scheduler has no plan that begins there.
    """
    whole = len(plan_of(request, scheduler, "text-to-image"))
    if whole == len(timesteps):
        return plan_of(request, scheduler, "text-to-image")
    own = request.timesteps is None and request.sigmas is None
    steps = request.num_inference_steps if own else whole
    left = steps - (whole - len(timesteps))
    later = replace(request, strength=(left + 0.5) / steps)  # half a step more than is rounded off
    rest = plan_of(later, scheduler, "image-to-image")
    if not np.array_equal(rest.timesteps, timesteps):
        raise RequestError("scheduler", f"{scheduler.name} cannot begin in the middle of its steps")
    return rest


def joined(first: Plan, count: int, rest: Plan) -> Plan:
    """Return a plan of the first so many steps of one, and all of another one."""
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
