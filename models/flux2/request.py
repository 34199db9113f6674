"""Request of FLUX.2 klein, validated. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.spec.field_types import Count, Scale
from models.spec.request import REQUEST, FlowRequest, served_fields

MAX_SEQUENCE_LENGTH = 512
"""Maximum number of text tokens, including the chat template's, as in training."""

MANY_TOKENS = 4300
"""Image tokens above which the shift does not depend on the number of steps."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Flux2Request(FlowRequest):
    """Parameters of one FLUX.2 klein image, named as in diffusers' Flux2KleinPipeline."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """Scale of classifier-free guidance; not available in distilled checkpoints."""

    @property
    def guided(self) -> bool:
        """Return whether classifier-free guidance is used."""
        return self.guidance_scale > 1

    @property
    def scales(self) -> Mapping[str, float]:
        """Guidance scales that are inputs of every step."""
        return {"guidance_scale": self.guidance_scale}


FIELDS = served_fields(Flux2Request, "image", "reference_images")
"""Request fields of FLUX.2 klein."""
GUIDANCE = frozenset({"guidance_scale", "negative_prompt"})
"""Fields of classifier-free guidance; not available in distilled checkpoints."""


def empirical_mu(tokens: int, steps: int) -> float:
    """Return the schedule's dynamic shift for a number of image tokens and steps.

    Linear in the tokens for 10 and for 200 steps, and interpolated over the steps. Source: Black
    Forest Labs, FLUX.2 (src/flux2/sampling.py, compute_empirical_mu).
    """
    of_200 = 0.00016927 * tokens + 0.45666666
    if tokens > MANY_TOKENS:
        return of_200
    of_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (of_200 - of_10) / 190.0
    return slope * steps + (of_200 - 200.0 * slope)
