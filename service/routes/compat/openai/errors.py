"""Errors in OpenAI's format: an `error` object with its type, and headers that control retries."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from service.errors.problems import Problem, problem_body
from service.routes.compat import documents
from service.routes.compat.endpoint import code_of
from service.schemas.response import OpenAIErrorView

ADMITTING = tuple(status for status in documents.ADMITTING if status != 422)
"""Error statuses of OpenAI routes that admit a request and wait for its job."""
_STATUSES = {422: 400}
"""Statuses that OpenAI's API replaces with others."""


class OpenAIError(BaseModel):
    """Error response in OpenAI's format."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    error: OpenAIErrorView
    """The error itself."""


def error_of(problem: Problem) -> dict[str, Any]:
    """Return the `error` object of a response or an event."""
    error: dict[str, Any] = problem_body(problem)["error"]
    return error | {"code": code_of(problem)}


def status_of(problem: Problem) -> int:
    """Return the HTTP status of a problem in OpenAI's API."""
    return _STATUSES.get(problem.status, problem.status)


def openai_error(problem: Problem) -> Response:
    """Convert a problem to OpenAI's error format.

    `x-should-retry` controls OpenAI's SDKs. Without it they retry every 409 and 5xx, although some
    of these report a job that has ended. A request that cannot be served is a 400 in OpenAI's API,
    not a 422.

    Source: openai-python, src/openai/_base_client.py, `_should_retry`, `_parse_retry_after_header`.
    """
    headers = dict(problem.headers)
    wait_s = headers.get("Retry-After")
    if wait_s is not None:
        headers["Retry-After-Ms"] = str(1000 * int(wait_s))
    headers["X-Should-Retry"] = "true" if wait_s is not None else "false"
    content = json.dumps({"error": error_of(problem)})
    return Response(content, status_of(problem), headers=headers, media_type="application/json")
