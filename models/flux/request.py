"""Request of Flux, validated. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from models.spec.field_types import Scale, TextTokens
from models.spec.prompt_syntax import PromptSyntax
from models.spec.request import REQUEST, TrueCfgRequest, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FluxRequest(TrueCfgRequest):
    """Parameters of one Flux image, named as in diffusers' FluxPipeline and FluxImg2ImgPipeline."""

    SCALES = ("guidance_scale", "true_cfg_scale")

    max_sequence_length: TextTokens
    """T5 tokens of each prompt."""
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


FIELDS = served_fields(FluxRequest)
"""Request fields of Flux, except images; `guidance_scale` requires a network with an
input for it."""
NEGATIVE = frozenset({"true_cfg_scale", "negative_prompt", "negative_prompt_2"})
"""Fields of classifier-free guidance with a negative prompt."""
