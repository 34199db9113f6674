"""Problems (RFC 9457): the exceptions that become HTTP error responses, one class for each status.

The same body contains `error: {message, type, param, code}`, which OpenAI clients read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.responses import Response

POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Default Content-Security-Policy of responses: no content may be loaded or run."""

SAFE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


MAX_NAME_CHARS = 80
UNION_TAG = "\0"
"""Prefix of a schema's union tags, which are not part of a path."""


def path_of(location: Sequence[str | int]) -> str:
    """Convert Pydantic's location of an error to a dotted path."""
    parts = [str(part) for part in location]
    names = [part[:MAX_NAME_CHARS] for part in parts if not part.startswith(UNION_TAG)]
    return ".".join(names) or "body"


MEDIA_TYPE = "application/problem+json"

MAX_ERRORS = 16
"""Maximum number of field errors reported for one request."""


@dataclass(frozen=True)
class FieldError:
    """Error in one field of the body, or in one header."""

    field: str
    message: str


class Problem(Exception):
    """HTTP error response as an exception; subclasses define the status.

    Args:
        detail: what happened and what to do, for people.
        code: the kind of problem, for programs; the class has a default.
        errors: the wrong fields.
        headers: additional response headers.
        members: additional members of the problem, such as `job_id`.
    """

    status: ClassVar[int] = 500
    code: str = "internal"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.members = dict(members or {})


class Malformed(Problem):
    """400: the body is not a JSON object, or a header is invalid."""

    status, code = 400, "malformed"


class Unauthorized(Problem):
    """401: the API key is missing or wrong. Source: RFC 6750, section 3."""

    status, code = 401, "unauthorized"

    def __init__(self, detail: str, *, challenge: str = "Bearer", **rest: Any) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": challenge}, **rest)


class Forbidden(Problem):
    """403: the caller is authenticated but lacks permission."""

    status, code = 403, "forbidden"


class NotFound(Problem):
    """404: no resource has this path or name."""

    status, code = 404, "not_found"


class MethodNotAllowed(Problem):
    """405: the path does not support this method."""

    status, code = 405, "method_not_allowed"


class NotAcceptable(Problem):
    """406: no available representation matches the Accept header."""

    status, code = 406, "not_acceptable"


class RequestTimeout(Problem):
    """408: the client took too long to send its request."""

    status, code = 408, "request_timeout"


class Conflict(Problem):
    """409: the request conflicts with the resource's current state."""

    status, code = 409, "conflict"


class Gone(Problem):
    """410: the resource existed and was removed."""

    status, code = 410, "gone"


class BodyTooLarge(Problem):
    """413: the body is longer than allowed."""

    status, code = 413, "body_too_large"


class TargetTooLong(Problem):
    """414: the request's path and query are too long."""

    status, code = 414, "uri_too_long"


class UnsupportedMedia(Problem):
    """415: the body's media type is not supported."""

    status, code = 415, "unsupported_media_type"


class RangeNotSatisfiable(Problem):
    """416: the range begins after the output's end."""

    status, code = 416, "range_not_satisfiable"


class Misdirected(Problem):
    """421: the request's Host is not a name of this server."""

    status, code = 421, "misdirected_request"


class Unservable(Problem):
    """422: the request cannot be served, now or later."""

    status, code = 422, "invalid_request"


class Invalid(Unservable):
    """422: fields are wrong, or not supported by the model or this server."""

    def __init__(self, errors: Sequence[FieldError], **rest: Any) -> None:
        unique = dict.fromkeys(errors)  # two of our fields may map to one of another API's
        errors = [FieldError(e.field[:MAX_NAME_CHARS], e.message) for e in [*unique][:MAX_ERRORS]]
        detail = "; ".join(f"{error.field}: {error.message}" for error in errors)
        super().__init__(detail, errors=errors, **rest)


class Busy(Problem):
    """429: too many requests are waiting; retry after `retry_after_s`."""

    status, code = 429, "queue_full"

    def __init__(self, detail: str, *, retry_after_s: float, **rest: Any) -> None:
        headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
        super().__init__(detail, headers=headers | dict(rest.pop("headers", {})), **rest)


class HeadersTooLarge(Problem):
    """431: the headers are too many or too long. Source: RFC 6585, section 5."""

    status, code = 431, "headers_too_large"


class Unavailable(Busy):
    """503: a dependency is temporarily unavailable."""

    status, code = 503, "unavailable"


class JobFailed(Problem):
    """500: the client waited for bytes, and the job ended without output."""

    status, code = 500, "job_failed"


class OutputDamaged(Problem):
    """500: the stored bytes do not match the recorded checksum."""

    status, code = 500, "output_damaged"


class JobLate(Problem):
    """504: the client waited for bytes, and none were ready in time."""

    status, code = 504, "job_late"


TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content too large",
    414: "URI too long",
    415: "Unsupported media type",
    416: "Range not satisfiable",
    421: "Misdirected request",
    422: "Unprocessable content",
    429: "Too many requests",
    431: "Request header fields too large",
    500: "Internal server error",
    503: "Service unavailable",
    504: "Gateway timeout",
}
"""HTTP's reason phrases. Source: RFC 9110, section 15; RFC 6585."""

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def problem_body(problem: Problem) -> dict[str, Any]:
    """Build the JSON body: RFC 9457 members, `code`, `errors`, and `error` for OpenAI clients."""
    status = problem.status
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body: dict[str, Any] = {
        "type": f"urn:atelier:problem:{problem.code}",
        "title": TITLES[status],
        "status": status,
        "detail": problem.detail,
    }
    if problem.errors:
        body["errors"] = [{"field": e.field, "message": e.message} for e in problem.errors]
    param = problem.errors[0].field if problem.errors else None
    shared = {"message": problem.detail, "type": kind, "param": param, "code": problem.code}
    return body | problem.members | {"error": shared}


def render(problem: Problem) -> Response:
    """Build the problem+json response, in ASCII since a detail may quote invalid Unicode."""
    return Response(
        json.dumps(problem_body(problem)),
        problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def raw_answer(problem: Problem) -> bytes:
    """Serialize the response to HTTP/1.1 bytes, for requests rejected before the app runs."""
    answer = render(problem)
    answer.headers.update(SAFE_HEADERS)
    headers = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
    status = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n".encode()
    return b"%s%sconnection: close\r\n\r\n%s" % (status, headers, bytes(answer.body))
