"""Base of frozen values in specs, which ignores unknown keys from newer versions in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator


class FrozenModel(BaseModel):
    """Frozen base of the parts of presets; rejects unknown keys outside JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_newer_fields(cls, data: Any, info: ValidationInfo) -> Any:
        """Drop keys of newer versions from a spec that is parsed from JSON."""
        if info.mode == "json" and isinstance(data, Mapping):
            return {name: value for name, value in data.items() if name in cls.model_fields}
        return data
