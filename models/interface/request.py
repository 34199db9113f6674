"""Typed requests: validation of a job's fields for a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from models.interface.pipeline import Fields, RequestError

REQUEST = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of a family's request, a frozen pydantic dataclass. Field names are those of the
API (service/schemas/request.py), and types are those of models/spec/field_types.py."""

EVERY_FAMILY = frozenset({"num_images", "quality"})
"""Request fields that every family supports and that no family reads in its steps."""

Request = TypeVar("Request")


def read_request(kind: Callable[..., Request], fields: Fields) -> Request:
    """Convert a resolved request to a family's typed request.

    Fields that the family lacks, and fields that are None, are ignored.

    Raises:
        RequestError: a value is missing or out of range; names the first such field.
    """
    values = {name: fields[name] for name in _names(kind) if fields.get(name) is not None}
    try:
        request: Request = _adapter(kind).validate_python(values)
        return request
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):  # raised by the family's validation of several fields
            raise cause from None
        raise RequestError(str(first["loc"][0]), _message(first)) from None


def served_fields(kind: Callable[..., Any], *images: str) -> frozenset[str]:
    """Return the API fields that a family supports: its request's fields, and its images."""
    return _names(kind) | EVERY_FAMILY | {*images}


@cache
def _names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields_of(kind))


_adapter = cache(TypeAdapter)
"""Cached validator of a request type."""


def _message(error: Mapping[str, Any]) -> str:
    """Return pydantic's message as the rest of a sentence that begins with the field."""
    if error["type"] == "missing":
        return "is needed"
    return str(error["msg"]).replace("Input should be", "must be", 1)
