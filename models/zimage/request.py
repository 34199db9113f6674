"""A resolved request, as Z-Image reads it: checked, and turned into a step table."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import FlowImageRequest, kept_scales, step_table
from models.interface.pipeline import Step
from models.interface.request import REQUEST, served_fields
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.solver import Solver
from models.spec.field_types import Count, Fraction, Scale

MAX_SEQUENCE_LENGTH = 512
"""Text tokens at most, the chat's own among them: what the network was trained with."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class ZImageRequest(FlowImageRequest):
    """Image. Names are diffusers' arguments of ZImagePipeline and its likes."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale
    """Distance beyond the prompt's prediction, in differences to the negative prompt's; 0: none."""
    cfg_normalization: Scale = 0.0
    """Norm of a guided prediction at most, as a multiple of the prompt's own; 0: any."""
    cfg_truncation: Fraction = 1.0
    """Time, from 0 (noise) to 1 (image), behind which steps are not guided."""

    @property
    def guided(self) -> bool:
        """Return whether any step is guided."""
        return self.guidance_scale > 0


FIELDS = served_fields(ZImageRequest, "image", "mask_image")
"""Request fields of Z-Image."""


def steps_of(
    request: ZImageRequest, plan: Plan, solver: Solver, t_scale: float
) -> tuple[Step, ...]:
    """The table of steps; those behind `cfg_truncation` are not guided."""
    times = (np.float32(1000) - plan.timesteps) / np.float32(1000)
    guided = [request.guided and float(time) <= request.cfg_truncation for time in times]
    return step_table(
        plan,
        [StepProgram("transformer", one, solver) for one in guided],
        timestep=times * np.float32(t_scale),
        guidance_scale=request.guidance_scale,
        cfg_normalization=request.cfg_normalization,
        **kept_scales(plan),
    )
