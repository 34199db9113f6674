"""Errors as OpenAI's clients read them: one `error` with its type, and headers about retries."""

from __future__ import annotations

import json

from fastapi import Response

from service.errors.problems import Problem, problem_body


def openai_error(problem: Problem) -> Response:
    """Return a problem as OpenAI's API would.

    `x-should-retry` tells its SDKs what to do; else they repeat every 409 and 5xx, of which some
    say that a job has ended.

    Source: openai-python, src/openai/_base_client.py, `_should_retry`, `_parse_retry_after_header`.
    """
    headers = dict(problem.headers)
    wait_s = headers.get("Retry-After")
    if wait_s is not None:
        headers["Retry-After-Ms"] = str(1000 * int(wait_s))
    headers["X-Should-Retry"] = "true" if wait_s is not None else "false"
    content = json.dumps({"error": problem_body(problem)["error"]})
    return Response(content, problem.status, headers=headers, media_type="application/json")
