"""Input of the validation rules, and the steps that it lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec, Task
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings

STEP_LISTS = frozenset({"timesteps", "sigmas"})
"""Fields that list the steps individually."""


@dataclass(frozen=True)
class Case:
    """Request to validate, with its model and limits."""

    spec: ModelSpec
    limits: LimitSettings
    task: Task
    fields: Mapping[str, Any]
    """Fields with defaults applied."""
    requested: Mapping[str, Any]
    """Fields set by the client."""
    loras: Sequence[Lora] = ()
    """Adapters that the tenant may name, for any model."""

    @cached_property
    def bounds(self) -> Bounds:
        """Limits of the model and the server's settings, combined."""
        return bounds_of(self.spec.limits, self.limits)

    @property
    def waits_for_size(self) -> bool:
        """Report whether the output's size depends on the input image, not decoded yet."""
        by_image = self.task in self.spec.sized_by_image
        return by_image and not self.requested.keys() & {"width", "height"}


def listed_steps(field: str, values: Sequence[float], spec: ModelSpec) -> int:
    """Count the steps of one of STEP_LISTS. A last noise level is an end point, not a step."""
    return len(values) - (field == "sigmas" and spec.sigmas_are == "noise levels")
