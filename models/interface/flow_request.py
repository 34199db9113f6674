"""Requests to models of flows: their common fields, schedules and steps."""

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
"""One value a step, or one for all."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowRequest(ABC):
    """Base of requests for one image. Names are diffusers' arguments."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Count
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    @abstractmethod
    def guided(self) -> bool:
        """Return whether the network answers a negative prompt, too."""

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and with guidance the negative prompt."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    def plan(
        self,
        scheduler: FlowMatchEuler,
        tokens: int,
        strength: float | None = None,
        mu: float | None = None,
    ) -> Plan:
        """The schedule; arguments and errors as of `planned`."""
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
            times: of the steps, as the network has them; None: as of `times_of`.
            guided: which steps are; None: all, where the request is.
        """
        guided = [self.guided] * len(plan) if guided is None else guided
        programs = [StepProgram("transformer", one, solver) for one in guided]
        timestep = times_of(plan) if times is None else times
        return step_table(plan, programs, timestep=timestep, **self.values(plan))

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return what steps read beside the time: one value a step, or one for all."""
        return {}


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowImageRequest(FlowRequest):
    """Base of requests that may begin with an image beneath the noise."""

    strength: Strength | None = None

    def begun(self, *, from_image: bool) -> float | None:
        """Strength of image to image, for `plan`; None: from noise alone."""
        return (self.strength or 1.0) if from_image else None


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class TrueCfgRequest(FlowImageRequest):
    """Base of requests with classifier-free guidance under its name beside a distilled one."""

    true_cfg_scale: Scale = 1.0

    @property
    def guided(self) -> bool:
        """Return whether both prompts count: with a scale above 1 and a negative one."""
        return self.true_cfg_scale > 1 and self.negative_prompt is not None


def check_sigmas(sigmas: Sequence[float] | None) -> None:
    """Check a request's own sigmas; None: it has none.

    Raises: RequestError: they are no schedule of a flow.
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
    """The schedule; image to image leaves out its first steps.

    Args:
        strength: of image to image; None: from noise alone.
        tokens: of the packed latents, by which a dynamic shift goes.
        fields: of the family's requests.
        mu: dynamic shift of the family's own; None: the config's.

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
    """Times of the steps, 0 to 1000, as networks of diffusers have them.

    It divides by 1000 on the way into the network and multiplies again inside it.
    """
    thousand = np.float32(1000)
    return plan.timesteps / thousand * thousand


def step_table(
    plan: Plan, programs: Sequence[StepProgram], **values: StepValues
) -> tuple[Step, ...]:
    """Return the table of steps.

    Args:
        programs: one a step.
        values: for the network and for guidance: one a step, or one for all.
    """
    columns = {
        name: np.broadcast_to(np.asarray(value, np.float32), len(plan))
        for name, value in values.items()
    }
    return tuple(
        Step(program, {**{name: of[i] for name, of in columns.items()}, **step_values(plan, i)})
        for i, program in enumerate(programs)
    )


def kept_scales(plan: Plan) -> Mapping[str, Float32[np.ndarray, " steps"]]:
    """Scales of the part of an image that a mask keeps, after each step."""
    return {"clean_scale": plan.clean_scale[1:], "noise_scale": plan.noise_scale[1:]}
