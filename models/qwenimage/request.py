"""Qwen-Image's view of a resolved request: validated values and a step table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.flow_request import StepValues, TrueCfgRequest, preserved_scales
from models.interface.pipeline import RequestError
from models.interface.request import REQUEST, served_fields
from models.sampling.base import Plan
from models.sampling.flow_match import FlowMatchEuler
from models.spec.field_types import Count

MAX_SEQUENCE_LENGTH = 1024
"""Maximum number of text tokens, as in diffusers' QwenImagePipeline."""


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class QwenImageRequest(TrueCfgRequest):
    """Parameters of one image, named as in diffusers' QwenImagePipeline and its variants."""

    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]

    def plan(
        self,
        scheduler: FlowMatchEuler,
        tokens: int,
        strength: float | None = None,
        mu: float | None = None,
    ) -> Plan:
        """Plan the schedule of a Qwen-Image request.

        Raises: RequestError: an invalid schedule, or one step for a schedule that ends above zero.
        """
        count = self.num_inference_steps if self.sigmas is None else len(self.sigmas)
        if scheduler.shift_terminal and count < 2:
            raise RequestError(
                "num_inference_steps" if self.sigmas is None else "sigmas",
                "must be 2 or more: this model's schedule is stretched to end at a noise of "
                f"{scheduler.shift_terminal}, which a single step cannot reach",
            )
        return super().plan(scheduler, tokens, strength, mu)

    def values(self, plan: Plan) -> Mapping[str, StepValues]:
        """Return the step inputs in addition to the time."""
        return {"true_cfg_scale": self.true_cfg_scale, **preserved_scales(plan)}


FIELDS = served_fields(QwenImageRequest, "image", "mask_image")
"""Request fields of Qwen-Image."""
