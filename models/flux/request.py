"""Request of Flux, validated. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.spec.field_types import Count, Scale
from models.spec.prompt_syntax import PromptSyntax
from models.spec.request import REQUEST, TrueCfgRequest, served_fields

MAX_SEQUENCE_LENGTH = 512
"""Maximum number of T5 tokens, as in diffusers' FluxPipeline."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FluxRequest(TrueCfgRequest):
    """Parameters of one Flux image, named as in diffusers' FluxPipeline and FluxImg2ImgPipeline."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """Input of guidance-distilled networks; ignored by others."""
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

    @property
    def scales(self) -> Mapping[str, float]:
        """Guidance scales that are inputs of every step."""
        return {"guidance_scale": self.guidance_scale, "true_cfg_scale": self.true_cfg_scale}


FIELDS = served_fields(FluxRequest)
"""Request fields of Flux, except images; `guidance_scale` requires a network with an
input for it."""
NEGATIVE = frozenset({"true_cfg_scale", "negative_prompt", "negative_prompt_2"})
"""Fields of classifier-free guidance with a negative prompt."""
