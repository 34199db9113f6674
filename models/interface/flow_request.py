"""Common requests of flow models: their fields, schedules and steps."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields as fields_of

import numpy as np
from jaxtyping import Float32
from pydantic.dataclasses import dataclass

from models.interface.pipeline import RequestError, Step
from models.interface.request import REQUEST
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.field_types import Count, NoiseLevel, Pixels, Scale, Seed, Strength

StepValues = float | Sequence[float] | np.ndarray
"""A value per step, or a single value for all steps."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowRequest(ABC):
    """Base of requests for one image. Field names are diffusers' arguments."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Count
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None

    def __post_init__(self) -> None:
        """Validate the sigmas.

        Raises: RequestError: the sigmas are not a valid flow schedule.
        """
        check_sigmas(self.sigmas)

    @property
    @abstractmethod
    def guided(self) -> bool:
        """True if the network also evaluates a negative prompt."""

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and the negative prompt if guided."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    def plan(
        self,
        scheduler: FlowMatchEuler,
        tokens: int,
        strength: float | None = None,
        mu: float | None = None,
    ) -> Plan:
        """Return the schedule; arguments and errors as in `planned`."""
        names = {field.name for field in fields_of(self)}
        return planned(
            scheduler,
            self.num_inference_steps,
            self.sigmas,
            strength,
            tokens=tokens,
            fields=names,
            mu=mu,
        )

    def steps(
        self,
        plan: Plan,
        solver: Solver,
        times: Float32[np.ndarray, " steps"] | None = None,
        guided: Sequence[bool] | None = None,
    ) -> tuple[Step, ...]:
        """Return the table of steps.

        Args:
            times: the network's time input per step; None: `times_of`.
            guided: whether each step is guided; None: all steps, if the request is guided.
        """
        guided = [self.guided] * len(plan) if guided is None else guided
        programs = [StepProgram("transformer", is_guided, solver) for is_guided in guided]
        timestep = times_of(plan) if times is None else times
        return step_table(plan, programs, timestep=timestep, **self.values(plan))

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return the inputs of steps besides the time: a value per step, or one for all."""
        return {}


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowImageRequest(FlowRequest):
    """Base of requests that may start from an image."""

    strength: Strength | None = None

    def image_strength(self, *, from_image: bool) -> float | None:
        """Return the strength of image-to-image, for `plan`; None: start from noise."""
        return (self.strength or 1.0) if from_image else None


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class TrueCfgRequest(FlowImageRequest):
    """Base of requests with classifier-free guidance next to a distilled guidance scale."""

    true_cfg_scale: Scale = 1.0

    @property
    def guided(self) -> bool:
        """True if both prompts are evaluated: a scale above 1 and a negative prompt."""
        return self.true_cfg_scale > 1 and self.negative_prompt is not None


def check_sigmas(sigmas: Sequence[float] | None) -> None:
    """Validate a request's sigmas, if any.

    Raises: RequestError: the sigmas are not a valid flow schedule.
    """
    if sigmas is None:
        return
    falling = all(a > b for a, b in itertools.pairwise(sigmas))
    if not sigmas or not falling or not 0 < sigmas[-1] <= sigmas[0] <= 1:
        raise RequestError("sigmas", "must fall from at most 1 and stay above 0")


def planned(
    scheduler: FlowMatchEuler,
    steps: int,
    sigmas: Sequence[float] | None,
    strength: float | None,
    *,
    tokens: int,
    fields: Collection[str],
    mu: float | None = None,
) -> Plan:
    """Return the schedule; image-to-image skips its first steps.

    Args:
        strength: of image-to-image; None: start from noise.
        tokens: of the packed latents, which determine a dynamic shift.
        fields: of the family's requests.
        mu: dynamic shift computed by the family; None: the config's.

    Raises: RequestError: names the field.
    """
    try:
        return scheduler.plan(steps, sigmas=sigmas, strength=strength, tokens=tokens, mu=mu)
    except ValueError as error:
        field = str(error).split()[0]
        raise RequestError(
            field if field in fields else "num_inference_steps", str(error).removeprefix(field)
        ) from error


def times_of(plan: Plan) -> Float32[np.ndarray, " steps"]:
    """Return the times of the steps, 0 to 1000, rounded as in diffusers.

    Diffusers divides by 1000 before the network and multiplies inside it.
    """
    thousand = np.float32(1000)
    return plan.timesteps / thousand * thousand


def step_table(
    plan: Plan, programs: Sequence[StepProgram], **values: StepValues
) -> tuple[Step, ...]:
    """Return the table of steps.

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
