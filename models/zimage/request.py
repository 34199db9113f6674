"""Request of Z-Image, validated. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from models.spec.field_types import Fraction, Scale, TextTokens
from models.spec.request import REQUEST, FlowImageRequest, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class ZImageRequest(FlowImageRequest):
    """Parameters of one image, named as in diffusers' ZImagePipeline and its variants."""

    SCALES = ("guidance_scale", "cfg_normalization")

    max_sequence_length: TextTokens
    guidance_scale: Scale
    """Multiple of the difference to the negative prompt's prediction that is added to the prompt's;
    0 disables guidance."""
    cfg_normalization: Scale = 0.0
    """Maximum norm of a guided prediction, as a multiple of the prompt's; 0 is unlimited."""
    cfg_truncation: Fraction = 1.0
    """Time, from 0 (noise) to 1 (image), after which steps have no guidance."""

    @property
    def guided(self) -> bool:
        """Return whether guidance runs in any step of the request."""
        return self.guidance_scale > 0


FIELDS = served_fields(ZImageRequest, "image", "mask_image")
"""Request fields of Z-Image."""
