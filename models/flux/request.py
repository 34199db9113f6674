"""A resolved request, as Flux reads it: checked, and turned into NumPy inputs and a step table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import TrueCfgRequest
from models.interface.request import REQUEST, served_fields
from models.sampling.base import Plan
from models.spec.field_types import Count, Scale
from models.spec.prompt_syntax import PromptSyntax

MAX_SEQUENCE_LENGTH = 512
"""T5 tokens at most, as in diffusers' FluxPipeline."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FluxRequest(TrueCfgRequest):
    """Image. Names are diffusers' arguments of FluxPipeline and FluxImg2ImgPipeline."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """An input of the network where guidance is distilled into it; others have none."""
    prompt_syntax: PromptSyntax = "plain"
    prompt_2: str | None = None
    negative_prompt_2: str | None = None

    @property
    def prompts_2(self) -> dict[str, str]:
        """T5's texts by field; each defaults to CLIP's."""
        fields = ("prompt", "negative_prompt")[: len(self.prompts)]
        second = {field: getattr(self, f"{field}_2") for field in fields}
        return {
            f"{field}_2" if second[field] else field: second[field] or self.prompts[field]
            for field in fields
        }

    def values(self, plan: Plan) -> Mapping[str, float]:
        """Return what steps read beside the time."""
        return {"guidance_scale": self.guidance_scale, "true_cfg_scale": self.true_cfg_scale}


FIELDS = served_fields(FluxRequest)
"""Request fields of Flux, beside images; `guidance_scale` only where the network has an input for
it."""
NEGATIVE = frozenset({"true_cfg_scale", "negative_prompt", "negative_prompt_2"})
"""Fields of a second pass with a negative prompt."""
