"""A resolved request, as Qwen-Image reads it: checked, and turned into a step table."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import check_sigmas, planned
from models.interface.pipeline import RequestError, Step
from models.interface.request import REQUEST, served_fields
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.field_types import Count, NoiseLevel, Pixels, Scale, Seed, Strength
from models.vae.references import FURTHER, IMAGE

MAX_SEQUENCE_LENGTH = 1024
"""Text tokens at most, as in diffusers' QwenImagePipeline."""


@dataclass(frozen=True, config=REQUEST)
class QwenImageRequest:
    """Image. Names are diffusers' arguments of QwenImagePipeline and its likes."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    true_cfg_scale: Scale = 1.0
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None
    strength: Strength | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and with true CFG the negative prompt."""
        if not self.guided:
            return {"prompt": self.prompt}
        return {"prompt": self.prompt, "negative_prompt": self.negative_prompt or ""}

    @property
    def guided(self) -> bool:
        """Return whether both prompts count: with a scale above 1 and a negative one."""
        return self.true_cfg_scale > 1 and self.negative_prompt is not None


FIELDS = served_fields(QwenImageRequest, IMAGE, FURTHER, "mask_image")
"""Request fields of Qwen-Image."""


def plan_of(
    request: QwenImageRequest, scheduler: FlowMatchEuler, tokens: int, *, from_image: bool
) -> Plan:
    """The schedule; image to image leaves out its first steps.

    Args:
        tokens: of the packed latents, by which the shift goes.

    Raises: RequestError: no step is left, or one step alone of a schedule that ends above zero.
    """
    count = request.num_inference_steps if request.sigmas is None else len(request.sigmas)
    if scheduler.shift_terminal and count < 2:
        field = "num_inference_steps" if request.sigmas is None else "sigmas"
        raise RequestError(
            field,
            "must be 2 or more: this model's schedule is stretched to end at a noise of "
            f"{scheduler.shift_terminal}, which one step alone cannot be",
        )
    strength = (request.strength or 1.0) if from_image else None
    return planned(
        scheduler,
        request.num_inference_steps,
        request.sigmas,
        strength,
        tokens=tokens,
        fields=FIELDS,
    )


def steps_of(request: QwenImageRequest, plan: Plan, solver: Solver) -> tuple[Step, ...]:
    """The table of steps."""
    program = StepProgram("transformer", request.guided, solver)
    # diffusers divides by 1000 on the way into the network and multiplies again inside it.
    thousand = np.float32(1000)
    timesteps = plan.timesteps / thousand * thousand
    return tuple(
        Step(
            program,
            {
                "timestep": timesteps[i],
                "true_cfg_scale": np.float32(request.true_cfg_scale),
                # of the kept part of an image after this step
                "clean_scale": plan.clean_scale[i + 1],
                "noise_scale": plan.noise_scale[i + 1],
                **step_values(plan, i),
            },
        )
        for i in range(len(plan))
    )
