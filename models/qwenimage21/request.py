"""Request of Qwen-Image 2.1, validated. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.spec.field_types import Count
from models.spec.request import REQUEST, TrueCfgRequest, served_fields

MAX_SEQUENCE_LENGTH = 1024
"""Maximum number of text tokens; diffusers' QwenImage21Pipeline has no limit."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class QwenImage21Request(TrueCfgRequest):
    """Parameters of one image, named as in diffusers' QwenImage21Pipeline."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field; a blank for an empty one, as in diffusers."""
        return {field: text or " " for field, text in super().prompts.items()}

    @property
    def scales(self) -> Mapping[str, float]:
        """Guidance scales of the request, which are inputs of every step."""
        return {"true_cfg_scale": self.true_cfg_scale}


FIELDS = served_fields(QwenImage21Request) - {"strength"}
"""Request fields of Qwen-Image 2.1."""
