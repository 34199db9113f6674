"""Case: a request under check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from models.spec.lora import Lora
from models.spec.model_spec import ModelSpec, Task
from service.schemas.limits import Bounds, bounds_of
from service.settings.limits import LimitSettings


@dataclass(frozen=True)
class Case:
    """Request under check, with its model and limits."""

    spec: ModelSpec
    limits: LimitSettings
    task: Task
    fields: Mapping[str, Any]
    """Fields with the defaults filled in."""
    given: Mapping[str, Any]
    """Fields that the client has set."""
    loras: Sequence[Lora] = ()
    """Adapters that the tenant may name, of any model."""

    @cached_property
    def bounds(self) -> Bounds:
        """Bounds of the model and the settings together."""
        return bounds_of(self.spec.limits, self.limits)

    @property
    def waits_for_size(self) -> bool:
        """Return whether the size will be the image's, which has not been read yet."""
        by_image = self.task in self.spec.sized_by_image
        return by_image and not self.given.keys() & {"width", "height"}
