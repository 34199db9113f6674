"""Endpoint that the lines of a batch call: how a line's body is checked, admitted and answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from service.admission.parse import parse_body
from service.errors.problems import FieldError, Invalid, Problem, problem_body
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import FieldWarning, Job
from service.responses.render import job_view
from service.schemas.request import GenerateRequest

Body = Mapping[str, Any]


async def _no_warnings(front: FrontEnd, body: Body) -> Sequence[FieldWarning]:
    return ()


class NamesModel(Protocol):
    """Request that may name a model."""

    @property
    def model(self) -> str | None:
        """Name of the model; None: the only model of this server."""


@dataclass(frozen=True)
class BatchEndpoint:
    """Endpoint of a batch's lines, as a set of functions.

    Args:
        url: the lines' `url`.
        check: validates a body in a thread, as far as possible without its model. Raises: Problem.
        request: yields a body as a `GenerateRequest` while its job is admitted; errors inside name
            the line's own fields. Raises: Problem.
        answer: builds the response body about a successful job. Raises: Problem.
        error: builds the response body about a problem.
        status: returns that response's HTTP status.
        warnings: returns warnings about a body's fields without effect. Raises: Problem.
    """

    url: str
    check: Callable[[Body], NamesModel]
    request: Callable[[FrontEnd, Body], AbstractAsyncContextManager[GenerateRequest]]
    answer: Callable[[FrontEnd, Job, Body], Awaitable[Body]]
    error: Callable[[Problem], Body] = problem_body
    status: Callable[[Problem], int] = lambda problem: problem.status
    warnings: Callable[[FrontEnd, Body], Awaitable[Sequence[FieldWarning]]] = _no_warnings


def _parse_and_check(body: Body) -> GenerateRequest:
    """Parse a body and reject inline output. Raises: Invalid."""
    request = parse_body(body)
    if request.output and request.output.inline:
        message = "not in a batch; fetch each output by its url"
        raise Invalid([FieldError("output.inline", message)])
    return request


@asynccontextmanager
async def _request(front: FrontEnd, body: Body) -> AsyncIterator[GenerateRequest]:
    yield _parse_and_check(body)


async def _answer(front: FrontEnd, job: Job, body: Body) -> Body:
    return (await job_view(front, job)).model_dump(mode="json")


GENERATE = BatchEndpoint("/v1/generate", _parse_and_check, _request, _answer)
