"""A resolved request, as FLUX.2 klein reads it: checked, and turned into a step table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import FlowRequest, StepValues
from models.interface.request import REQUEST, served_fields
from models.sampling.base import Plan
from models.spec.field_types import Count, Scale
from models.vae.references import FURTHER, IMAGE

MAX_SEQUENCE_LENGTH = 512
"""Text tokens at most, the chat's own among them: what the network was trained with."""

MANY_TOKENS = 4300
"""Tokens of an image beyond which the shift does not go by the number of steps."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Flux2Request(FlowRequest):
    """Image. Names are diffusers' arguments of Flux2KleinPipeline."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale: Scale = 1.0
    """Scale of classifier-free guidance; distilled checkpoints have none."""

    @property
    def guided(self) -> bool:
        """Return whether both prompts count."""
        return self.guidance_scale > 1

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return what steps read beside the time."""
        return {"guidance_scale": self.guidance_scale}


FIELDS = served_fields(Flux2Request, IMAGE, FURTHER)
"""Request fields of FLUX.2 klein."""
GUIDANCE = frozenset({"guidance_scale", "negative_prompt"})
"""Fields of a second pass with a negative prompt, which distilled checkpoints do not have."""


def empirical_mu(tokens: int, steps: int) -> float:
    """Dynamic shift of a schedule, by the image's tokens and the number of steps.

    Linear in the tokens for 10 steps and for 200, and in the steps between them.
    Source: Black Forest Labs, FLUX.2 (src/flux2/sampling.py, compute_empirical_mu).
    """
    of_200 = 0.00016927 * tokens + 0.45666666
    if tokens > MANY_TOKENS:
        return of_200
    of_10 = 8.73809524e-05 * tokens + 1.89833333
    slope = (of_200 - of_10) / 190.0
    return slope * steps + (of_200 - 200.0 * slope)
