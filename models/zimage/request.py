"""A resolved request, as Z-Image reads it: checked, and turned into a step table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import FlowImageRequest, StepValues, kept_scales
from models.interface.request import REQUEST, served_fields
from models.sampling.base import Plan
from models.spec.field_types import Count, Fraction, Scale

MAX_SEQUENCE_LENGTH = 512
"""Text tokens at most, the chat's own among them: what the network was trained with."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class ZImageRequest(FlowImageRequest):
    """Image. Names are diffusers' arguments of ZImagePipeline and its likes."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale
    """Distance beyond the prompt's prediction, in differences to the negative prompt's; 0: none."""
    cfg_normalization: Scale = 0.0
    """Norm of a guided prediction at most, as a multiple of the prompt's own; 0: any."""
    cfg_truncation: Fraction = 1.0
    """Time, from 0 (noise) to 1 (image), behind which steps are not guided."""

    @property
    def guided(self) -> bool:
        """Return whether any step is guided."""
        return self.guidance_scale > 0

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return what steps read beside the time."""
        own = {"guidance_scale": self.guidance_scale, "cfg_normalization": self.cfg_normalization}
        return {**own, **kept_scales(plan)}


FIELDS = served_fields(ZImageRequest, "image", "mask_image")
"""Request fields of Z-Image."""
