"""Request of Krea 2, validated. No JAX: front ends import this module."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.spec.field_types import Count, Scale
from models.spec.request import REQUEST, FlowImageRequest, served_fields

MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH = 8, 1024
"""Bounds of the number of text tokens, which include the chat template's end; diffusers'
Krea2Pipeline has none."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Krea2Request(FlowImageRequest):
    """Parameters of one image, named as in diffusers' Krea2Pipeline."""

    SCALES = ("guidance_scale",)

    max_sequence_length: Annotated[Count, Field(ge=MIN_SEQUENCE_LENGTH, le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale
    """Multiple of the difference to the negative prompt's prediction that is added to the prompt's;
    0 disables guidance."""

    @property
    def guided(self) -> bool:
        """Return whether the network also evaluates a negative prompt, by default an empty one."""
        return self.guidance_scale > 0


FIELDS = served_fields(Krea2Request) - {"strength"}
"""Request fields of Krea 2."""
