"""Requests of FLUX.2, validated. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from models.spec.field_types import Scale, TextTokens
from models.spec.request import REQUEST, FlowImageRequest, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Flux2Request(FlowImageRequest):
    """Parameters of one FLUX.2 klein image, named as in diffusers' Flux2KleinPipeline."""

    SCALES = ("guidance_scale",)

    max_sequence_length: TextTokens
    guidance_scale: Scale = 1.0
    """Scale of classifier-free guidance, of dev an input of the network; klein's distilled
    checkpoints have none."""

    @property
    def guided(self) -> bool:
        """Return whether the request uses classifier-free guidance."""
        return self.guidance_scale > 1


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Flux2DevRequest(Flux2Request):
    """Parameters of one FLUX.2 dev image; `guidance_scale` is an input of the network."""

    @property
    def guided(self) -> bool:
        """Return False: there is no classifier-free guidance."""
        return False


FIELDS = served_fields(Flux2Request, "image", "mask_image", "reference_images")
"""Request fields of FLUX.2 klein."""
DEV_FIELDS = FIELDS - {"negative_prompt", "mask_image", "strength"}
"""Request fields of FLUX.2 dev."""
GUIDANCE = frozenset({"guidance_scale", "negative_prompt"})
"""Fields of classifier-free guidance; not available in distilled checkpoints."""
