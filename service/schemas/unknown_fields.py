"""Errors of a body, each with what was probably meant: another field, or an object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from service.errors.did_you_mean import did_you_mean
from service.errors.field_paths import path_of
from service.errors.handlers import NO_FIELD, field_errors
from service.errors.problems import MAX_ERRORS, FieldError
from service.schemas.aliases import ALIASES, SHAPES
from service.schemas.request import GenerateRequest

Location = Sequence[str | int]


def body_errors(error: ValidationError, body: type[BaseModel]) -> list[FieldError]:
    """Return the first errors of a body, without the values that the client sent."""
    found = error.errors(include_input=False, include_url=False)[:MAX_ERRORS]
    return [_field_error(item, body) for item in found]


def unknown_field(location: Location, body: type[BaseModel]) -> FieldError:
    """Return the error of a field that the body does not have at that place."""
    *above, name = location
    known = [field for part in _parts(body, above) for field in _names(part)]
    aliases = ALIASES.get(".".join(_fields_of(above)), {})
    if body is not GenerateRequest:  # another API's, which may lack what is meant
        aliases = {alias: meant for alias, meant in aliases.items() if _first(meant) in known}
    meant = did_you_mean(str(name), known, aliases)
    said = f"{NO_FIELD}; did you mean {meant}?" if meant not in (None, name) else NO_FIELD
    return FieldError(path_of(location), said)


def _first(meant: str) -> str:
    """Return the first field that an alias stands for."""
    return re.split(r"[., ]", meant)[0]


def _field_error(item: Any, body: type[BaseModel]) -> FieldError:
    if item["type"] == "extra_forbidden":
        return unknown_field(item["loc"], body)
    if item["type"] == "model_type":  # whose own text names a class of ours
        return FieldError(path_of(item["loc"]), _no_object(item["loc"]))
    return field_errors([item])[0]


def _no_object(location: Location) -> str:
    shape = SHAPES.get(".".join(_fields_of(location)))
    return f"must be an object, such as {shape}" if shape else "must be an object"


def _fields_of(location: Location) -> Iterator[str]:
    """Names on the way, without the places in lists."""
    return (part for part in location if isinstance(part, str))


def _parts(body: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """Return the models that a value at that place may be of."""
    found = [body]
    for name in _fields_of(location):
        inner = [_annotation(part, name) for part in found]
        found = [part for annotation in inner for part in _models(annotation)] or found
    return found


def _annotation(part: type[BaseModel], name: str) -> Any:
    for field, info in part.model_fields.items():
        if name in (field, info.alias):
            return info.annotation
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models inside a type, such as `list[LoraRequest] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _models(inner)]


def _names(part: type[BaseModel]) -> list[str]:
    return [info.alias or field for field, info in part.model_fields.items()]
