"""First step of admission: a body and its headers as a typed request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors.problems import MAX_ERRORS, FieldError, Invalid, Malformed
from service.schemas.request import GenerateRequest
from service.schemas.unknown_fields import body_errors, unknown_field

M = TypeVar("M", bound=BaseModel)

MAX_KEY_CHARS = 255
"""Maximum length of an Idempotency-Key."""


@dataclass(frozen=True)
class Parsed:
    """A well-formed request, of which nothing is known of its model yet."""

    body: GenerateRequest
    idempotency_key: str | None
    media_types: tuple[str, ...]
    """Media types of the Accept header, best first, where it asks for bytes."""
    drafts: str = ""
    """Name of the drafts that it goes on from: a part of what its idempotency key stands for."""


def parse_body(body: Mapping[str, Any]) -> GenerateRequest:
    """Read a JSON object strictly. Raises: Invalid: names the first fields that are wrong."""
    return parse_as(GenerateRequest, body)


def parse_as(kind: type[M], body: Mapping[str, Any]) -> M:
    """Read a JSON object, or a form's texts, as that kind of body. Raises: Invalid."""
    unknown = _unknown(kind, body)
    if len(unknown) > MAX_ERRORS:  # each of which would cost an error of Pydantic's
        raise Invalid([unknown_field([name], kind) for name in unknown[:MAX_ERRORS]])
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise Invalid(body_errors(error, kind)) from None


def _unknown(kind: type[BaseModel], body: Mapping[str, Any]) -> list[str]:
    """Names that the kind refuses."""
    if kind.model_config.get("extra") != "forbid":
        return []
    known = _names(kind)
    return [name for name in body if name not in known]


@cache
def _names(kind: type[BaseModel]) -> frozenset[str | None]:
    """Names that a kind's fields are given by."""
    return frozenset(name for key, one in kind.model_fields.items() for name in (key, one.alias))


def parse(
    body: GenerateRequest,
    headers: Mapping[str, str],
    media_types: tuple[str, ...],
    drafts: str = "",
) -> Parsed:
    """Read the headers that belong to the body. Raises: Malformed."""
    return Parsed(body, idempotency_key(headers), media_types, drafts)


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the Idempotency-Key, if there is one. Raises: Malformed."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        message = f"must have 1 to {MAX_KEY_CHARS} printable characters"
        raise Malformed(
            f"Idempotency-Key {message}", errors=[FieldError("Idempotency-Key", message)]
        )
    return key
