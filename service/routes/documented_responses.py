"""OpenAPI descriptions of the routes' responses, headers and parameters."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from service.errors.problems import MEDIA_TYPE, TITLES
from service.http.multipart import MEDIA_TYPE as FORM
from service.http.negotiation import EVENTS as EVENT_STREAM
from service.http.negotiation import JSON
from service.responses.preview import MEDIA_TYPES as PREVIEWS
from service.schemas.examples import EVENTS as EVENTS_EXAMPLE
from service.schemas.examples import METRICS as METRICS_EXAMPLE
from service.schemas.request_parts import END_EVENTS, MEDIA_TYPES

Documents = dict[str, Any]
Responses = dict[int | str, Documents]


def _schema(name: str) -> Documents:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def with_example(example: Any) -> Responses:
    """Add an example to a route's JSON response (200) for OpenAPI, if its class has none."""
    return {200: {"content": {JSON: {"example": example}}}}


def _example(name: str) -> Documents:
    """Refer to an example of `documented_examples.NAMED`; FastAPI would omit its nulls."""
    return {"examples": {"default": {"$ref": f"#/components/examples/{name}"}}}


def _header(description: str, kind: str = "string") -> Documents:
    return {"description": description, "schema": {"type": kind}}


def _parameter(name: str, description: str, **schema: Any) -> Documents:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


_QUOTAS = {
    "RateLimit-Policy": _header("The tenant's quotas, if it has any (IETF draft)."),
    "RateLimit": _header("Remaining amounts of these quotas."),
}
_RETRY_AFTER = {"Retry-After": _header("Seconds to wait before trying again.", "integer")}
PROBLEM_HEADERS: dict[int, Documents] = {
    401: {"WWW-Authenticate": _header("How to send an API key (RFC 6750).")},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
_NAMES = {
    "Location": _header("URL of the job."),
    "X-Job-Id": _header("The job's id."),
    "X-Atelier-Cache": _header(
        "`hit` if the files are copies of an earlier job's; otherwise absent."
    ),
    "X-Atelier-Warnings": _header(
        "`field: message` of each warning of the job, separated by `; `."
    ),
}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FILES = {media_type: _BINARY for media_type in MEDIA_TYPES.values()}
_STREAM = {
    EVENT_STREAM: {
        "schema": {
            "type": "object",
            "description": "One event of the stream; `data` is JSON: for an end state, the job.",
            "properties": {
                "id": {"type": "string"},
                "event": {"enum": ["queued", "running", "progress", "preview", *END_EVENTS]},
                "data": {"type": "string"},
            },
        },
        "example": EVENTS_EXAMPLE,
    }
}


def json_body(name: str) -> Documents:
    """Describe for OpenAPI the JSON body of a route that parses it itself, by its schema's name."""
    content = {JSON: _schema(name)}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


def problems(*statuses: int, headers: Documents | None = None) -> Responses:
    """Describe a route's errors for OpenAPI, and the 500 that every route may return.

    Args:
        headers: additional headers of each error except 401.
    """
    return {status: _problem(status, headers or {}) for status in (*statuses, 500)}


def _problem(status: int, shared: Documents) -> Documents:
    headers = PROBLEM_HEADERS.get(status, {}) | (shared if status != 401 else {})
    return {
        "description": TITLES[status],
        "content": {MEDIA_TYPE: _schema("ProblemView")},
        **({"headers": headers} if headers else {}),
    }


_KEY = _parameter(
    "Idempotency-Key",
    "A repeat with the same key and body returns the same job.",
    minLength=1,
    maxLength=255,
    pattern="^[ -~]+$",
)

GENERATE: Documents = {
    "response_class": Response,
    "status_code": 202,
    "responses": {
        202: {
            "description": "Accepted: the job, which has not ended; with `Prefer: return=minimal`"
            " an `AcceptedView` instead.",
            "content": {JSON: _schema("JobView") | _example("QueuedJob")},
            "headers": _NAMES
            | _QUOTAS
            | {"Preference-Applied": _header("`return=minimal`, if that was applied.")},
        },
        200: {
            "description": "The finished job, the output's own bytes, or the job's events.",
            "content": {JSON: _schema("JobView"), **_FILES, **_STREAM},
            "headers": _NAMES
            | _QUOTAS
            | {"Preference-Applied": _header("The applied wait of `Prefer: wait`.")},
        },
        **problems(400, 401, 404, 406, 409, 410, 413, 415, 422, 429, 503, 504, headers=_QUOTAS),
    },
    "openapi_extra": {
        "requestBody": {"required": True, "content": {JSON: _schema("GenerateRequest")}},
        "parameters": [
            _parameter(
                "Prefer",
                "`wait` or `wait=N`: respond when the job has ended, or after N s;"
                " `return=minimal`, without `wait`: respond with the job's id and URLs only.",
            ),
            _KEY,
        ],
    },
}
"""POST /v1/generate."""

CONTINUE: Documents = GENERATE | {
    "openapi_extra": GENERATE["openapi_extra"]
    | {"requestBody": {"required": True, "content": {JSON: _schema("ContinueRequest")}}}
}
"""POST /v1/jobs/{id}/continue."""

VERIFY: Documents = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "The verdict.",
            "content": {JSON: _schema("Verification")},
            "headers": _NAMES | _QUOTAS,
        },
        202: {
            "description": "Accepted: the new job has not ended.",
            "content": {JSON: _schema("Verification") | _example("PendingVerification")},
            "headers": _NAMES | _QUOTAS,
        },
        **problems(400, 401, 404, 409, 410, 413, 415, 422, 429, 503, headers=_QUOTAS),
    },
    "openapi_extra": {
        "requestBody": {"required": True, "content": {JSON: _schema("VerifyRequest"), **_FILES}},
        "parameters": [
            _parameter("Prefer", "`wait=N`: respond after N s, whether the job has ended or not."),
            _KEY,
        ],
    },
}
"""POST /v1/verify."""

CANCEL: Responses = {
    200: {"content": {JSON: _example("CanceledJob")}},
    **problems(401, 404, 429, 503),
}
"""POST /v1/jobs/{id}/cancel."""

EVENTS: Documents = {
    "response_class": Response,
    "responses": {
        200: {"description": "Server-sent events.", "content": _STREAM, "headers": _NAMES},
        **problems(401, 404, 429, 503),
    },
    "openapi_extra": {
        "parameters": [_parameter("Last-Event-ID", "Resume after the event with this id.")]
    },
}
"""GET /v1/jobs/{id}/events."""

OUTPUT: Documents = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "The file.",
            "content": _FILES,
            "headers": {
                "ETag": _header("The file's SHA-256."),
                "Cache-Control": _header("Private: a copy is for one client."),
                "Vary": _header(
                    "`Authorization`, if keys are required: a copy is valid for one key."
                ),
            },
        },
        206: {"description": "The requested byte range.", "content": _FILES},
        304: {"description": "The client's copy is current."},
        307: {
            "description": "Redirect to the object store.",
            "headers": {"Location": _header("URL of the file.")},
        },
        **problems(401, 404, 410, 416, 422, 429, 500, 503),
    },
    "openapi_extra": {
        "parameters": [
            _parameter("Range", "One range of bytes, such as `bytes=0-1023`."),
            _parameter("If-None-Match", "The ETag of the client's copy."),
            _parameter("If-Range", "The ETag of the file that Range refers to."),
        ]
    },
}
"""GET /v1/jobs/{id}/outputs/{index}."""

LINK: Documents = OUTPUT | {
    "responses": {
        **{status: answer for status, answer in OUTPUT["responses"].items() if status != 401},
        **problems(403),
    }
}
"""GET /links/{id}/{index}."""

UPLOAD_LORA: Documents = {
    "response_class": Response,
    "status_code": 201,
    "responses": {
        201: {
            "description": "The new adapter, which requests may name.",
            "content": {JSON: _schema("LoraView")},
            "headers": {"Location": _header("URL of the adapter.")},
        },
        200: {
            "description": "The existing adapter: the same file under that name.",
            "content": {JSON: _schema("LoraView")},
            "headers": {"Location": _header("URL of the adapter.")},
        },
        **problems(400, 401, 404, 409, 413, 415, 422, 429, 503),
    },
    "openapi_extra": {
        "requestBody": {"required": True, "content": {FORM: _schema("LoraUpload")}},
    },
}
"""POST /v1/loras."""

DELETE_LORA: Documents = {
    "response_class": Response,
    "status_code": 204,
    "responses": {
        204: {"description": "The adapter was deleted."},
        **problems(401, 403, 404, 429, 503),
    },
}
"""DELETE /v1/loras/{name}."""

LORA_PREVIEW: Documents = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "The image.",
            "content": {kind: _BINARY for kind in PREVIEWS},
            "headers": {"ETag": _header("The image's SHA-256.")},
        },
        304: {"description": "The client's copy is current."},
        **problems(401, 404, 429, 503),
    },
    "openapi_extra": {
        "parameters": [_parameter("If-None-Match", "The ETag of the client's copy.")]
    },
}
"""GET /v1/loras/{name}/preview."""

METRICS: Documents = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "Metrics in Prometheus' text format, as OpenMetrics, or in protobuf.",
            "content": {
                "text/plain": {"schema": {"type": "string"}, "example": METRICS_EXAMPLE},
                "application/openmetrics-text": {
                    "schema": {"type": "string"},
                    "example": f"{METRICS_EXAMPLE}# EOF\n",
                },
                "application/vnd.google.protobuf": _BINARY,
            },
        }
    },
}
"""GET /metrics."""
