"""A resolved request, as Qwen-Image reads it: checked, and turned into a step table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import FlowImageRequest, kept_scales, step_table, times_of
from models.interface.pipeline import RequestError, Step
from models.interface.request import REQUEST, served_fields
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.field_types import Count, Scale
from models.vae.references import FURTHER, IMAGE

MAX_SEQUENCE_LENGTH = 1024
"""Text tokens at most, as in diffusers' QwenImagePipeline."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class QwenImageRequest(FlowImageRequest):
    """Image. Names are diffusers' arguments of QwenImagePipeline and its likes."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    true_cfg_scale: Scale = 1.0

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
    return request.plan(scheduler, tokens, request.begun(from_image=from_image))


def steps_of(request: QwenImageRequest, plan: Plan, solver: Solver) -> tuple[Step, ...]:
    """The table of steps."""
    return step_table(
        plan,
        [StepProgram("transformer", request.guided, solver)] * len(plan),
        timestep=times_of(plan),
        true_cfg_scale=request.true_cfg_scale,
        **kept_scales(plan),
    )
