"""Exception handlers that convert every exception of a request to a problem response.

Paths without a route get advice: misspelt ones, and those of other servers' APIs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from models.spec.type_messages import type_message
from service.errors.forms import answer
from service.errors.problems import (
    MAX_ERRORS,
    FieldError,
    Invalid,
    Malformed,
    MethodNotAllowed,
    NotFound,
    Problem,
    Unavailable,
    path_of,
)
from service.jobs.model.errors import WireError
from service.jobs.scripts.client import Unconfirmed
from service.jobs.storage.errors import StoreError

_SLASHES = re.compile(r"/{2,}")
_WORKFLOWS = (
    "this server runs no ComfyUI workflows; its node for ComfyUI (examples/comfyui) sends requests"
    " to POST /v1/generate"
)
_NO_TEXT = (
    "this server generates images and videos, and no text: POST /v1/images/generations, or"
    " /v1/chat/completions"
)
_OPENAI = "use OpenAI's API: its base URL here ends with /v1, as in POST /v1/images/generations"
OTHER_SERVERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("/sdapi/v1/extra-",),
        "upscaling alone is not served; send enable_hr and hr_upscaler to /sdapi/v1/txt2img, or"
        " upscale to POST /v1/generate",
    ),
    (
        ("/sdapi/v1/interrogate", "/interrogator/"),
        "descriptions of images are not served; write the prompt yourself",
    ),
    (("/controlnet/detect",), "send control images with the module canny to /sdapi/v1/txt2img"),
    (("/sdapi/", "/internal/"), "this route of AUTOMATIC1111 is not served; see /docs"),
    (
        ("/prompt", "/history", "/queue", "/object_info", "/system_stats", "/upload/", "/view"),
        _WORKFLOWS,
    ),
    (("/openai/deployments/", "/v2beta/", "/v1/generation/", "/api/v1/"), _OPENAI),
    (
        *(("/v1/completions", "/v1/embeddings", "/v1/moderations", "/v1/audio/", "/v1/rerank"),),
        _NO_TEXT,
    ),
    (("/api/generate", "/api/chat", "/api/tags", "/api/show"), _OPENAI),
    (("/models/", "/hf-inference/"), "models of Hugging Face's API are at POST /hf/NAME"),
    (("/v1/deployments/", "/v1/trainings"), "POST /v1/predictions with a model's name as version"),
)
"""First letters of paths, and what to do instead; the first match counts."""


def advice(path: str, routes: Collection[str]) -> str:
    """Return what to do about a path without a route.

    Args:
        routes: paths of all routes.
    """
    if (near := next((other for other in _variants(path) if other in routes), None)) is not None:
        return f"did you mean {near}?"
    plain = _SLASHES.sub("/", path)
    matches = (message for starts, message in OTHER_SERVERS if plain.startswith(starts))
    return next(matches, "see /docs")


def _variants(path: str) -> Iterator[str]:
    """Yield a path without doubled parts and a final slash, and with the prefix of an API."""
    plain = _SLASHES.sub("/", path).rstrip("/").replace("/v1/v1/", "/v1/")
    yield plain
    yield from (f"/v1{plain}", f"/sdapi/v1{plain}")
    if plain.startswith(("/api/", "/openai/")):
        rest = plain[plain.index("/", 1) :]
        yield from (rest, f"/v1{rest}")


log = logging.getLogger("atelier")

REDIS_UNREACHABLE = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    ClusterDownError,
    OutOfMemoryError,
    NoPermissionError,
)
"""Errors of redis-py while the server is unreachable, failing over, full, or denies permission."""
REDIS_UNAVAILABLE_CODES = frozenset({"MISCONF", "NOREPLICAS", "BUSY"})
"""First words of Redis errors that describe the server's state rather than the request: disk full,
replicas missing, or a script blocks it."""

RETRY_AFTER_S = 2.0


NO_FIELD = "there is no such field"


def field_errors(errors: Sequence[Any]) -> list[FieldError]:
    """Convert the first Pydantic errors to field errors, without the client's values."""
    return [FieldError(path_of(error["loc"]), type_message(error)) for error in errors[:MAX_ERRORS]]


def install(app: FastAPI) -> None:
    """Register the exception handlers; each response has its path's error format."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _router_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    for away in REDIS_UNREACHABLE:
        app.add_exception_handler(away, _redis_unreachable)
    app.add_exception_handler(ResponseError, _redis_error)
    app.add_exception_handler(Unconfirmed, _unconfirmed)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(WireError, _newer_version)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _internal_error)


async def response_to(request: Request, error: Exception) -> Response:
    """Build the response to an exception that a route did not raise but returned to its caller.

    Unexpected exceptions are logged, as the server does for routes.
    """
    handlers = request.app.exception_handlers
    kind = next(kind for kind in type(error).__mro__ if kind in handlers)
    if kind is Exception:
        log.error("a request failed after its response had begun", exc_info=error)
    response: Response = await handlers[kind](request, error)
    return response


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer(request, error)


async def _router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    if error.status_code == 404:
        routes = getattr(request.app.state, "methods", {})
        return answer(request, NotFound(f"no route matches {path!r}; {advice(path, routes)}"))
    if error.status_code == 405:
        headers |= _allowed(request)
        message = f"{path!r} does not support {request.method}; see /docs"
        return answer(request, MethodNotAllowed(message, headers=headers))
    return answer(request, Malformed(str(error.detail), headers=headers))


def _allowed(request: Request) -> dict[str, str]:
    """Build an `Allow` header with the methods of all routes of this path.

    The router reports only the first route's methods.
    """
    template = getattr(request.scope.get("route"), "path_format", "")
    methods = set(getattr(request.app.state, "methods", {}).get(template, ()))
    methods |= {"HEAD"} if "GET" in methods else set()
    return {"Allow": ", ".join(sorted(methods))} if methods else {}


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    errors = [dict(item, loc=item["loc"][1:]) for item in error.errors()]
    return answer(request, Invalid(field_errors(errors)))


async def _redis_unreachable(request: Request, error: Exception) -> Response:
    log.warning("Redis is unreachable: %s", error)
    return answer(
        request,
        Unavailable(
            "the queue cannot be reached; try again (with an Idempotency-Key a repeat is safe)",
            code="queue_unreachable",
            retry_after_s=RETRY_AFTER_S,
        ),
    )


async def _unconfirmed(request: Request, error: Exception) -> Response:
    log.warning("queue.wait_replicas: %s", error)
    return answer(
        request,
        Unavailable(
            "the queue's replicas did not confirm the request in time; try again, with the same"
            " Idempotency-Key if it had one",
            code="unconfirmed",
            retry_after_s=RETRY_AFTER_S,
        ),
    )


async def _redis_error(request: Request, error: Exception) -> Response:
    if str(error).split(" ", 1)[0] in REDIS_UNAVAILABLE_CODES:
        return await _redis_unreachable(request, error)
    log.error("Redis rejected a call", exc_info=error)
    return await _internal_error(request, error)


async def _store_error(request: Request, error: Exception) -> Response:
    log.warning("the store failed: %s", error)
    message = "the image store is unavailable; try again"
    return answer(
        request, Unavailable(message, code="store_unreachable", retry_after_s=RETRY_AFTER_S)
    )


async def _newer_version(request: Request, error: Exception) -> Response:
    """Respond 503 to a job written by a newer version, which another front end can read."""
    log.warning("%s", error)
    return answer(
        request,
        Unavailable(
            "the job was accepted by a newer version of the service than this front end's; try"
            " again: another front end may respond",
            code="newer_version",
            retry_after_s=RETRY_AFTER_S,
        ),
    )


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return answer(
        request, Malformed("the connection closed before the body was complete")
    )  # the client has disconnected


async def _internal_error(request: Request, error: Exception) -> Response:
    return answer(request, Problem("internal error of the service; it has been logged"))
