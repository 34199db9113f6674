"""LTX-2's view of a resolved request: validated values, and their step table."""

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
"""Guidance scales that are inputs of every step."""


@dataclass(frozen=True, config=REQUEST)
class LTX2Request:
    """Parameters of a video with audio, named as in LTX2Pipeline; `fps` is its `frame_rate`."""

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
    """Scale of guidance away from predictions without attention between streams."""
    guidance_rescale: Fraction
    max_sequence_length: Count
    stg_scale: Scale = 0.0
    """Scale of guidance away from predictions without a block's self-attention; unavailable in
    LTX-2.0."""
    negative_prompt: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None

    def __post_init__(self) -> None:
        """Validate the sigmas.

        Raises: RequestError: the sigmas are not a flow schedule.
        """
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and the negative prompt if either stream is guided."""
        guided = self.guidance_scale > 1 or self.audio_guidance_scale > 1
        negative = {"negative_prompt": self.negative_prompt or ""} if guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def perturbed(self) -> tuple[str, ...]:
        """Perturbations that guidance uses, by their leaf names."""
        enabled = {"skip_self": self.stg_scale > 0, "skip_cross": self.modality_scale > 1}
        return tuple(name for name, is_enabled in enabled.items() if is_enabled)


FIELDS = served_fields(LTX2Request, "image")
"""Request fields of LTX-2."""


def steps_of(request: LTX2Request, scheduler: FlowMatchEuler, tokens: int) -> tuple[Step, ...]:
    """Return the step table of an LTX-2 request. Raises: RequestError.

    Args:
        tokens: video tokens, which determine the shift of the schedule.
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
