"""A resolved request, as Flux reads it: checked, and turned into NumPy inputs and a step table."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import check_sigmas, planned
from models.interface.pipeline import Step
from models.interface.request import REQUEST, served_fields
from models.interface.solver_step import step_values
from models.interface.step_program import StepProgram
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.solver import Solver
from models.spec.field_types import Count, NoiseLevel, Pixels, Scale, Seed, Strength
from models.spec.prompt_syntax import PromptSyntax

MAX_SEQUENCE_LENGTH = 512
"""T5 tokens at most, as in diffusers' FluxPipeline."""


@dataclass(frozen=True, config=REQUEST)
class FluxRequest:
    """Image. Names are diffusers' arguments of FluxPipeline and FluxImg2ImgPipeline."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """An input of the network where guidance is distilled into it; others have none."""
    true_cfg_scale: Scale = 1.0
    prompt_syntax: PromptSyntax = "plain"
    prompt_2: str | None = None
    negative_prompt: str | None = None
    negative_prompt_2: str | None = None
    sigmas: tuple[NoiseLevel, ...] | None = None
    strength: Strength | None = None

    def __post_init__(self) -> None:
        """Raises: RequestError: the sigmas are no schedule of a flow."""
        check_sigmas(self.sigmas)

    @property
    def prompts(self) -> dict[str, str]:
        """CLIP's texts by field: the prompt, and with true CFG the negative prompt."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.classifier_free else {}
        return {"prompt": self.prompt, **negative}

    @property
    def prompts_2(self) -> dict[str, str]:
        """T5's texts by field; each defaults to CLIP's."""
        fields = ("prompt", "negative_prompt")[: len(self.prompts)]
        second = {field: getattr(self, f"{field}_2") for field in fields}
        return {
            f"{field}_2" if second[field] else field: second[field] or self.prompts[field]
            for field in fields
        }

    @property
    def classifier_free(self) -> bool:
        """Return whether both prompts count: with a scale above 1 and a negative one."""
        return self.true_cfg_scale > 1 and self.negative_prompt is not None


FIELDS = served_fields(FluxRequest)
"""Request fields of Flux, beside images; `guidance_scale` only where the network has an input for
it."""
NEGATIVE = frozenset({"true_cfg_scale", "negative_prompt", "negative_prompt_2"})
"""Fields of a second pass with a negative prompt."""


def plan_of(
    request: FluxRequest, scheduler: FlowMatchEuler, tokens: int, *, from_image: bool
) -> Plan:
    """The schedule; image to image leaves out its first steps. Raises: RequestError.

    Args:
        tokens: of the packed latents, by which a dynamic shift goes.
    """
    strength = (request.strength or 1.0) if from_image else None
    return planned(
        scheduler,
        request.num_inference_steps,
        request.sigmas,
        strength,
        tokens=tokens,
        fields=FIELDS,
    )


def steps_of(request: FluxRequest, plan: Plan, solver: Solver) -> tuple[Step, ...]:
    """The table of steps."""
    program = StepProgram("transformer", request.classifier_free, solver)
    # diffusers divides by 1000 on the way into the network and multiplies again inside it.
    thousand = np.float32(1000)
    timesteps = plan.timesteps / thousand * thousand
    scales = {
        name: np.float32(getattr(request, name)) for name in ("guidance_scale", "true_cfg_scale")
    }
    return tuple(
        Step(program, {"timestep": timesteps[i], **scales, **step_values(plan, i)})
        for i in range(len(plan))
    )
