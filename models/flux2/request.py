"""FLUX.2 klein's view of a resolved request: validated values and a step table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import FlowRequest, StepValues
from models.interface.request import REQUEST, served_fields
from models.sampling.base import Plan
from models.spec.field_types import Count, Scale
from models.vae.references import IMAGE, REFERENCE_IMAGES

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

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return the step inputs in addition to the time."""
        return {"guidance_scale": self.guidance_scale}


FIELDS = served_fields(Flux2Request, IMAGE, REFERENCE_IMAGES)
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
