"""First step of admission: the caller, and body and headers validated as a typed request."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors.problems import MAX_ERRORS, FieldError, Invalid, Malformed
from service.jobs.model.job import FieldWarning
from service.schemas.request import GenerateRequest
from service.schemas.unknown_fields import body_errors, unknown_field

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MAX_KEY_CHARS = 255
"""Maximum length of an Idempotency-Key."""


class WhileConnected(Protocol):
    """Runner of a coroutine that is cancelled when the client disconnects.

    Raises: ClientDisconnect.
    """

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]:
        """Run the coroutine to its end, or cancel it when the client disconnects."""


@dataclass(frozen=True)
class Caller:
    """Sender of one request, whose job is admitted.

    Args:
        tenant: owner of the job.
        client: key of the per-client limits: the tenant, or the client's address if keys are not
            required.
        while_connected: runs a coroutine and cancels it when the client disconnects.
        traceparent: W3C trace context of the job's parent span.
        previews: number of previews that the client requested.
        key_id: id of the API key of the request; None if keys are not required.
        request_id: id of the request, for the log.
        warnings: about fields of another vendor's API that have no effect here.
        avoid: name of a worker that should leave the job to others.
    """

    tenant: str
    client: str
    while_connected: WhileConnected
    traceparent: str | None = None
    previews: int = 0
    key_id: str | None = None
    request_id: str | None = None
    warnings: tuple[FieldWarning, ...] = ()
    avoid: str | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """Well-formed request that has not been checked against its model."""

    body: GenerateRequest
    idempotency_key: str | None
    media_types: tuple[str, ...]
    """Media types of the Accept header, best first, if the client wants bytes."""
    drafts: str = ""
    """Name of the drafts that the request continues, which is part of its idempotency digest."""


def parse_body(body: Mapping[str, Any]) -> GenerateRequest:
    """Parse a JSON object strictly as a `GenerateRequest`. Raises: Invalid."""
    return parse_as(GenerateRequest, body)


def parse_as(kind: type[M], body: Mapping[str, Any]) -> M:
    """Parse a JSON object, or the text fields of a form, as a Pydantic model. Raises: Invalid."""
    unknown = _unknown(kind, body)
    if len(unknown) > MAX_ERRORS:  # Pydantic would build one error for each
        raise Invalid([unknown_field([name], kind) for name in unknown[:MAX_ERRORS]])
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise Invalid(body_errors(error, kind)) from None


def _unknown(kind: type[BaseModel], body: Mapping[str, Any]) -> list[str]:
    """List the body's field names that the Pydantic model rejects as unknown."""
    if kind.model_config.get("extra") != "forbid":
        return []
    names = _names(kind)
    return [name for name in body if name not in names]


@cache
def _names(kind: type[BaseModel]) -> frozenset[str | None]:
    """Names and aliases of a Pydantic model's fields."""
    return frozenset(
        name for key, field in kind.model_fields.items() for name in (key, field.alias)
    )


def parse(
    body: GenerateRequest,
    headers: Mapping[str, str],
    media_types: tuple[str, ...],
    drafts: str = "",
) -> ParsedRequest:
    """Combine a validated body with its headers' idempotency key. Raises: Malformed."""
    return ParsedRequest(body, idempotency_key(headers), media_types, drafts)


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the `Idempotency-Key` header; None if absent. Raises: Malformed."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        message = f"must have 1 to {MAX_KEY_CHARS} printable characters"
        raise Malformed(
            f"Idempotency-Key {message}", errors=[FieldError("Idempotency-Key", message)]
        )
    return key
