"""Base of values that specs carry: frozen, and read leniently where a newer version wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator


class Frozen(BaseModel):
    """Base of parts of presets: frozen, without unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known(cls, said: Any, info: ValidationInfo) -> Any:
        """Leave out what only a newer version knows, of a spec that is read."""
        if info.mode == "json" and isinstance(said, Mapping):
            return {name: value for name, value in said.items() if name in cls.model_fields}
        return said
