"""A resolved request, as Z-Image reads it: checked, and turned into a step table."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import check_sigmas
from models.interface.pipeline import Step
from models.interface.request import REQUEST, served_fields
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.solver import Solver
from models.spec.field_types import Count, Fraction, NoiseLevel, Pixels, Scale, Seed, Strength

MAX_SEQUENCE_LENGTH = 512
"""Text tokens at most, the chat's own among them: what the network was trained with."""


@dataclass(frozen=True, config=REQUEST)
class ZImageRequest:
    """Image. Names are diffusers' arguments of ZImagePipeline and its likes."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale
    """Distance beyond the prompt's prediction, in differences to the negative prompt's; 0: none."""
    cfg_normalization: Scale = 0.0
    """Norm of a guided prediction at most, as a multiple of the prompt's own; 0: any."""
    cfg_truncation: Fraction = 1.0
    """Time, from 0 (noise) to 1 (image), behind which steps are not guided."""
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None
    strength: Strength | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and with guidance the negative prompt."""
        guided = self.guidance_scale > 0
        negative = {"negative_prompt": self.negative_prompt or ""} if guided else {}
        return {"prompt": self.prompt, **negative}


FIELDS = served_fields(ZImageRequest, "image", "mask_image")
"""Request fields of Z-Image."""


def steps_of(
    request: ZImageRequest, plan: Plan, solver: Solver, t_scale: float
) -> tuple[Step, ...]:
    """The table of steps; those behind `cfg_truncation` are not guided."""
    times = (np.float32(1000) - plan.timesteps) / np.float32(1000)
    scales = {
        name: np.float32(getattr(request, name)) for name in ("guidance_scale", "cfg_normalization")
    }
    guided = request.guidance_scale > 0
    return tuple(
        Step(
            StepProgram("transformer", guided and float(time) <= request.cfg_truncation, solver),
            {
                "timestep": time * np.float32(t_scale),
                **scales,
                # of the kept part of an image after this step
                "clean_scale": plan.clean_scale[i + 1],
                "noise_scale": plan.noise_scale[i + 1],
                **step_values(plan, i),
            },
        )
        for i, time in enumerate(times)
    )
