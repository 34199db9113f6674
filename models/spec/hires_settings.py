"""Validation of hires fix in settings: the types of the field's members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from models.spec.field_types import Count, Pixels, Strength
from models.spec.hires import FIELD, HiresScale


class HiresSettings(BaseModel):
    """Schema of the `hires` field in settings."""

    model_config = ConfigDict(extra="forbid")

    scale: HiresScale | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    upscaler: str | None = None
    strength: Strength | None = None
    num_inference_steps: Count | None = None


def type_errors(options: Any) -> Iterator[tuple[str, str]]:
    """Yield the key and the message of each type error in a `hires` field."""
    try:
        TypeAdapter(HiresSettings).validate_python(options, strict=True)
    except ValidationError as error:
        for problem in error.errors():
            yield ".".join((FIELD, *map(str, problem["loc"]))), problem["msg"]
