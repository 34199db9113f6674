"""Mapping of exceptions to problems: the last stop of every request that went wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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

from service.errors.field_paths import path_of
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
)
from service.jobs.model.errors import WireError
from service.jobs.scripts.runner import Unconfirmed
from service.jobs.storage.errors import StoreError

log = logging.getLogger("atelier")

REDIS_AWAY = (
    ConnectionError,
    TimeoutError,
    ReadOnlyError,
    ClusterDownError,
    OutOfMemoryError,
    NoPermissionError,
)
"""Errors of redis-py while the server is unreachable, failing over, full, or refuses us."""
REDIS_UNFIT = frozenset({"MISCONF", "NOREPLICAS", "BUSY"})
"""First words of other answers that tell of the server's state, and nothing of the request: its
disk is full, its replicas are away, a script holds it up."""

RETRY_AFTER_S = 2.0


NO_FIELD = "there is no such field"


def field_errors(errors: Sequence[Any]) -> list[FieldError]:
    """The first of Pydantic's errors, without the values that the client sent."""
    return [FieldError(path_of(error["loc"]), _message(error)) for error in errors[:MAX_ERRORS]]


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return NO_FIELD
    return error["msg"].removeprefix("Value error, ")


def install(app: FastAPI) -> None:
    """Register the handlers: each error is answered in its path's form, problem+json for most."""
    app.add_exception_handler(Problem, _of_a_problem)
    app.add_exception_handler(HTTPException, _of_the_router)
    app.add_exception_handler(RequestValidationError, _of_parameters)
    for away in REDIS_AWAY:
        app.add_exception_handler(away, _without_redis)
    app.add_exception_handler(ResponseError, _refused_by_redis)
    app.add_exception_handler(Unconfirmed, _unconfirmed)
    app.add_exception_handler(StoreError, _without_store)
    app.add_exception_handler(WireError, _of_a_newer_version)
    app.add_exception_handler(ClientDisconnect, _without_client)
    app.add_exception_handler(Exception, _of_ours)


async def _of_a_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return answer(request, error)


async def _of_the_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    if error.status_code == 404:
        return answer(request, NotFound(f"there is nothing at {path!r}; see /docs"))
    if error.status_code == 405:
        headers |= _allowed(request)
        said = f"{path!r} does not take {request.method}; see /docs"
        return answer(request, MethodNotAllowed(said, headers=headers))
    return answer(request, Malformed(str(error.detail), headers=headers))


def _allowed(request: Request) -> dict[str, str]:
    """The methods of every route with that path; the router knows of the first one only."""
    template = getattr(request.scope.get("route"), "path_format", "")
    methods = {name.upper() for name in request.app.openapi()["paths"].get(template, {})}
    methods |= {"HEAD"} if "GET" in methods else set()
    return {"Allow": ", ".join(sorted(methods))} if methods else {}


async def _of_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    found = [dict(item, loc=item["loc"][1:]) for item in error.errors()]
    return answer(request, Invalid(field_errors(found)))


async def _without_redis(request: Request, error: Exception) -> Response:
    log.warning("redis is away: %s", error)
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


async def _refused_by_redis(request: Request, error: Exception) -> Response:
    if str(error).split(" ", 1)[0] in REDIS_UNFIT:
        return await _without_redis(request, error)
    log.error("redis refused a call", exc_info=error)
    return await _of_ours(request, error)


async def _without_store(request: Request, error: Exception) -> Response:
    log.warning("the store failed: %s", error)
    said = "the store of images cannot be used; try again"
    return answer(request, Unavailable(said, code="store_unreachable", retry_after_s=RETRY_AFTER_S))


async def _of_a_newer_version(request: Request, error: Exception) -> Response:
    """Answer for a job of which another front end knows more, while they are upgraded."""
    log.warning("%s", error)
    return answer(
        request,
        Unavailable(
            "the job was accepted by a newer version of the service than this front end's; try"
            " again, and another one may answer",
            code="newer_version",
            retry_after_s=RETRY_AFTER_S,
        ),
    )


async def _without_client(request: Request, error: Exception) -> Response:
    return answer(request, Malformed("the body broke off"))  # nobody is there to read it


async def _of_ours(request: Request, error: Exception) -> Response:
    return answer(request, Problem("something failed in the service; it has been logged"))
