"""Request of Qwen-Image, validated. No JAX: front ends import this module."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.spec.field_types import Count
from models.spec.request import REQUEST, TrueCfgRequest, served_fields

MAX_SEQUENCE_LENGTH = 1024
"""Maximum number of text tokens, as in diffusers' QwenImagePipeline."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class QwenImageRequest(TrueCfgRequest):
    """Parameters of one image, named as in diffusers' QwenImagePipeline and its variants."""

    SCALES = ("true_cfg_scale",)

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]


FIELDS = served_fields(QwenImageRequest, "image", "mask_image")
"""Request fields of Qwen-Image."""
