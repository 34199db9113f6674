"""A resolved request, as LTX-2 reads it: checked, and turned into a step table."""

from __future__ import annotations

import numpy as np
from pydantic.dataclasses import dataclass

from models.interface.flow_request import check_sigmas, planned
from models.interface.pipeline import Step
from models.interface.request import REQUEST, served_fields
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.spec.field_types import (
    Count,
    Fraction,
    FramesPerSecond,
    NoiseLevel,
    Pixels,
    Scale,
    Seed,
)

SCALES = (
    "guidance_scale",
    "audio_guidance_scale",
    "stg_scale",
    "modality_scale",
    "guidance_rescale",
)
"""Fields whose values every step reads."""


@dataclass(frozen=True, config=REQUEST)
class LTX2Request:
    """Video with sound. Names are diffusers' arguments of LTX2Pipeline; `fps` is `frame_rate`."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_frames: Count
    fps: FramesPerSecond
    num_inference_steps: Count
    guidance_scale: Scale
    audio_guidance_scale: Scale
    modality_scale: Scale
    """Scale of guidance away from streams that do not attend to each other."""
    guidance_rescale: Fraction
    max_sequence_length: Count
    stg_scale: Scale = 0.0
    """Scale of guidance away from a block without self-attention; LTX-2.0 has none."""
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and with guidance of a stream the negative prompt."""
        guided = self.guidance_scale > 1 or self.audio_guidance_scale > 1
        negative = {"negative_prompt": self.negative_prompt or ""} if guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def perturbed(self) -> tuple[str, ...]:
        """Perturbations that it is guided away from, as rows name them."""
        asked = {"alone": self.stg_scale > 0, "apart": self.modality_scale > 1}
        return tuple(name for name, is_asked in asked.items() if is_asked)


FIELDS = served_fields(LTX2Request, "image")
"""Request fields of LTX-2."""


def steps_of(request: LTX2Request, scheduler: FlowMatchEuler, tokens: int) -> tuple[Step, ...]:
    """Return the table of steps. Raises: RequestError.

    Args:
        tokens: of the video, by which the schedule is shifted.
    """
    steps = request.num_inference_steps
    plan: Plan = planned(scheduler, steps, request.sigmas, None, tokens=tokens, fields=FIELDS)
    guided = len(request.prompts) > 1 or bool(request.perturbed)
    program = StepProgram("transformer", guided, scheduler.solver)
    scales = {name: np.float32(getattr(request, name)) for name in SCALES}
    return tuple(
        Step(program, {"timestep": time, **scales, **step_values(plan, index)})
        for index, time in enumerate(plan.timesteps)
    )
