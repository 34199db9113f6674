"""A resolved request, as FLUX.2 klein reads it: checked, and turned into a step table."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.flux2.references import FURTHER, IMAGE
from models.interface.flow_request import check_sigmas, planned
from models.interface.pipeline import Step
from models.interface.request import REQUEST, served_fields
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.field_types import Count, NoiseLevel, Pixels, Scale, Seed

MAX_SEQUENCE_LENGTH = 512
"""Text tokens at most, the chat's own among them: what the network was trained with."""

MANY_TOKENS = 4300
"""Tokens of an image beyond which the shift does not go by the number of steps."""


@dataclass(frozen=True, config=REQUEST)
class Flux2Request:
    """Image. Names are diffusers' arguments of Flux2KleinPipeline."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """Scale of classifier-free guidance; distilled checkpoints have none."""
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and with guidance the negative prompt."""
        guided = self.guidance_scale > 1
        negative = {"negative_prompt": self.negative_prompt or ""} if guided else {}
        return {"prompt": self.prompt, **negative}


FIELDS = served_fields(Flux2Request, IMAGE, FURTHER)
"""Request fields of FLUX.2 klein."""
GUIDANCE = frozenset({"guidance_scale", "negative_prompt"})
"""Fields of a second pass with a negative prompt, which distilled checkpoints do not have."""


def plan_of(request: Flux2Request, scheduler: FlowMatchEuler, tokens: int) -> Plan:
    """The schedule. Raises: RequestError.

    Args:
        tokens: of the image that is drawn.
    """
    steps = request.num_inference_steps
    return planned(
        scheduler,
        steps,
        request.sigmas,
        None,
        tokens=tokens,
        fields=FIELDS,
        mu=empirical_mu(tokens, steps),
    )


def empirical_mu(tokens: int, steps: int) -> float:
    """Dynamic shift of a schedule, by the image's tokens and the number of steps.

    Linear in the tokens for 10 steps and for 200, and in the steps between them.
    Source: Black Forest Labs, FLUX.2 (src/flux2/sampling.py, compute_empirical_mu).
    """
    of_200 = 0.00016927 * tokens + 0.45666666
    if tokens > MANY_TOKENS:
        return of_200
    of_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (of_200 - of_10) / 190.0
    return slope * steps + (of_200 - 200.0 * slope)


def steps_of(request: Flux2Request, plan: Plan, solver: Solver) -> tuple[Step, ...]:
    """The table of steps."""
    program = StepProgram("transformer", len(request.prompts) > 1, solver)
    # diffusers divides by 1000 on the way into the network and multiplies again inside it.
    thousand = np.float32(1000)
    times = plan.timesteps / thousand * thousand
    scale = np.float32(request.guidance_scale)
    return tuple(
        Step(program, {"timestep": time, "guidance_scale": scale, **step_values(plan, i)})
        for i, time in enumerate(times)
    )
