"""OpenAPI descriptions of compatible routes, which parse and serialize bodies themselves."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Response
from pydantic import BaseModel

from service.errors.problems import TITLES
from service.http.negotiation import JSON
from service.routes.documented_responses import PROBLEM_HEADERS, Documents, Responses
from service.schemas.request_parts import MEDIA_TYPES

ADMITTING = (400, 401, 404, 409, 410, 413, 415, 422, 429, 503, 504)
"""Error statuses of a route that admits a request and waits for its job."""
BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES = {media_type: BINARY for media_type in MEDIA_TYPES.values()}


def schema_of(kind: type[BaseModel]) -> Documents:
    """Return a reference to the OpenAPI schema of a body's class."""
    return {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}


def stream_of(data: Documents, example: str) -> Documents:
    """Describe a stream of server-sent events for OpenAPI.

    Args:
        data: schema of each event's JSON.
        example: events as they are sent.
    """
    json_text = {"type": "string", "contentMediaType": JSON, "contentSchema": data}
    event = {"type": "string", "description": "Kind of the event."}
    properties = {"event": event, "data": json_text | {"description": "JSON of the event."}}
    description = "One event of the stream."
    schema = {"type": "object", "description": description, "properties": properties}
    return {"schema": schema, "example": example}


def errors(kind: type[BaseModel], *statuses: int) -> Responses:
    """Describe a route's errors in its vendor's format, and the 500 that every route may return."""
    return {status: _error(kind, status) for status in (*statuses, 500)}


def _error(kind: type[BaseModel], status: int) -> Documents:
    headers = PROBLEM_HEADERS.get(status)
    content = {JSON: schema_of(kind)}
    return {"description": TITLES[status], "content": content} | (
        {"headers": headers} if headers else {}
    )


def operation(
    request_content: Documents,
    response_content: Documents,
    error: type[BaseModel],
    status: int = 200,
    fails: Sequence[int] = ADMITTING,
) -> Documents:
    """Describe a compatible endpoint's route that admits a request, for OpenAPI.

    Args:
        request_content: the request body's content by media type.
        response_content: the response's content by media type.
        error: schema of its errors.
        fails: statuses of its errors.
    """
    return {
        "response_class": Response,
        "status_code": status,
        "responses": {
            status: {"description": "The requested output.", "content": response_content},
            **errors(error, *fails),
        },
        "openapi_extra": {"requestBody": {"required": True, "content": request_content}},
    }
