"""Typed requests: how a family reads the fields of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from models.interface.pipeline import Fields, RequestError

REQUEST = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of a family's request, a frozen dataclass of pydantic's. Its fields are named like
those of the API (service/schemas/request.py) and have the types of models/spec/field_types.py."""

EVERY_FAMILY = frozenset({"num_images", "quality"})
"""Fields of every request that make rows and presets, not the family's steps."""

Request = TypeVar("Request")


def read_request(kind: Callable[..., Request], given: Fields) -> Request:
    """Read a resolved request as a family's.

    Fields that the family does not have, and those that are None, count as left out.

    Raises:
        RequestError: a value is missing or out of range; names the first such field.
    """
    known = {name: given[name] for name in _names(kind) if given.get(name) is not None}
    try:
        read: Request = _adapter(kind).validate_python(known)
        return read
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):  # of several fields, by the family's own check
            raise cause from None
        raise RequestError(str(first["loc"][0]), _message(first)) from None


def served_fields(kind: Callable[..., Any], *images: str) -> frozenset[str]:
    """Names of the API's fields that a family serves: its request's own, and its images'."""
    return _names(kind) | EVERY_FAMILY | {*images}


@cache
def _names(kind: Any) -> frozenset[str]:
    return frozenset(field.name for field in fields_of(kind))


_adapter = cache(TypeAdapter)
"""Reader of a kind of request."""


def _message(error: Mapping[str, Any]) -> str:
    """Pydantic's words as the rest of a sentence that begins with the field."""
    if error["type"] == "missing":
        return "is needed"
    return str(error["msg"]).replace("Input should be", "must be", 1)
