"""Validation errors of a body, with suggestions for misspelt or foreign field names."""

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
    """Return the first errors of a body, without the client's values."""
    items = error.errors(include_input=False, include_url=False)[:MAX_ERRORS]
    return [_field_error(item, body) for item in items]


def unknown_field(location: Location, body: type[BaseModel]) -> FieldError:
    """Create the error for an unknown field at a location, with a suggestion."""
    *parents, name = location
    names = [field for part in _parts(body, parents) for field in _names(part)]
    aliases = ALIASES.get(".".join(_fields_of(parents)), {})
    if body is not GenerateRequest:  # a body of another API, which may lack the suggested field
        aliases = {
            alias: suggestion
            for alias, suggestion in aliases.items()
            if _first(suggestion) in names
        }
    suggestion = did_you_mean(str(name), names, aliases)
    message = (
        f"{NO_FIELD}; did you mean {suggestion}?" if suggestion not in (None, name) else NO_FIELD
    )
    return FieldError(path_of(location), message)


def _first(suggestion: str) -> str:
    """Return the first field name in an alias's suggestion."""
    return re.split(r"[., ]", suggestion)[0]


def _field_error(item: Any, body: type[BaseModel]) -> FieldError:
    if item["type"] == "extra_forbidden":
        return unknown_field(item["loc"], body)
    if item["type"] == "model_type":  # pydantic's message names an internal class
        return FieldError(path_of(item["loc"]), _no_object(item["loc"]))
    return field_errors([item])[0]


def _no_object(location: Location) -> str:
    shape = SHAPES.get(".".join(_fields_of(location)))
    return f"must be an object, such as {shape}" if shape else "must be an object"


def _fields_of(location: Location) -> Iterator[str]:
    """Field names in a location, without list indices."""
    return (part for part in location if isinstance(part, str))


def _parts(body: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """Return the models that a value at that location may have."""
    models = [body]
    for name in _fields_of(location):
        inner = [_annotation(part, name) for part in models]
        models = [part for annotation in inner for part in _models(annotation)] or models
    return models


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
