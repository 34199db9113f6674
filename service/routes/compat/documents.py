"""Descriptions for openapi.yaml of the doors' routes, which read and write bodies by hand."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Response
from pydantic import BaseModel

from service.errors.problems import TITLES
from service.http.negotiation import JSON
from service.routes.documented_responses import PROBLEM_HEADERS, Documents, Responses
from service.schemas.request_parts import MEDIA_TYPES

ADMITTING = (400, 401, 404, 409, 410, 413, 415, 422, 429, 503, 504)
"""Statuses of errors that a route may answer with that admits a request and waits for its job."""
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES = {media_type: BINARY for media_type in MEDIA_TYPES.values()}


def schema_of(kind: type[BaseModel]) -> Documents:
    """Return a reference to a body's schema."""
    return {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}


def stream_of(data: Documents, example: str) -> Documents:
    """Describe a stream of events.

    Args:
        data: schema of each event's JSON.
        example: events as they are sent.
    """
    said = {"type": "string", "contentMediaType": JSON, "contentSchema": data}
    event = {"type": "string", "description": "Kind of the event."}
    properties = {"event": event, "data": said | {"description": "JSON of the event."}}
    described = "One event of the stream."
    schema = {"type": "object", "description": described, "properties": properties}
    return {"schema": schema, "example": example}


def errors(kind: type[BaseModel], *statuses: int) -> Responses:
    """Describe the errors of a route in the form of its API, and the 500 that none should be."""
    return {status: _error(kind, status) for status in (*statuses, 500)}


def _error(kind: type[BaseModel], status: int) -> Documents:
    headers = PROBLEM_HEADERS.get(status)
    content = {JSON: schema_of(kind)}
    return {"description": TITLES[status], "content": content} | (
        {"headers": headers} if headers else {}
    )


def operation(
    asked: Documents,
    answered: Documents,
    error: type[BaseModel],
    status: int = 200,
    fails: Sequence[int] = ADMITTING,
) -> Documents:
    """Describe a route that admits a request.

    Args:
        asked: its body's content by media type.
        answered: content of its answer by media type.
        error: schema of its errors.
        fails: statuses of its errors.
    """
    return {
        "response_class": Response,
        "status_code": status,
        "responses": {
            status: {"description": "What was asked for.", "content": answered},
            **errors(error, *fails),
        },
        "openapi_extra": {"requestBody": {"required": True, "content": asked}},
    }
