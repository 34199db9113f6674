"""Request of Chroma, validated. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from models.spec.field_types import Scale, TextTokens
from models.spec.prompt_syntax import PromptSyntax
from models.spec.request import REQUEST, FlowImageRequest, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class ChromaRequest(FlowImageRequest):
    """Parameters of one image, named as in diffusers' ChromaPipeline and its variants."""

    SCALES = ("guidance_scale",)

    max_sequence_length: TextTokens
    guidance_scale: Scale
    """Factor of the difference between the predictions of both prompts; 1 disables guidance."""
    prompt_syntax: PromptSyntax = "plain"

    @property
    def guided(self) -> bool:
        """Return whether the network also evaluates a negative prompt, by default an empty one."""
        return self.guidance_scale > 1


FIELDS = served_fields(ChromaRequest, "image", "mask_image")
"""Request fields of Chroma."""
