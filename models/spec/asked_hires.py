"""Hires fix as settings ask for it: members of the request's field, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from models.spec.field_types import Count, Pixels, Strength
from models.spec.hires import FIELD, HiresScale


class AskedHires(BaseModel):
    """Members of the request's field, each of its type."""

    model_config = ConfigDict(extra="forbid")

    scale: HiresScale | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    upscaler: str | None = None
    strength: Strength | None = None
    num_inference_steps: Count | None = None


def mistyped(asked: Any) -> Iterator[tuple[str, str]]:
    """Yield keys, and what is wrong with their values, of what is no such field."""
    try:
        TypeAdapter(AskedHires).validate_python(asked, strict=True)
    except ValidationError as error:
        for one in error.errors():
            yield ".".join((FIELD, *map(str, one["loc"]))), one["msg"]
