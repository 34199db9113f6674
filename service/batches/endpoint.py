"""Endpoint: what the lines of a batch may ask for, and how they are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from service.admission.parse import parse_body
from service.errors.problems import FieldError, Invalid, Problem, problem_body
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job
from service.responses.render import show
from service.schemas.request import GenerateRequest

Body = Mapping[str, Any]


class NamesModel(Protocol):
    """Request that may name a model."""

    @property
    def model(self) -> str | None:
        """Name of the model; None: the only one there is."""


@dataclass(frozen=True)
class BatchEndpoint:
    """Endpoint of a line.

    Args:
        url: as lines name it.
        check: reads a body, in a thread, as far as it can be checked alone. Raises: Problem.
        request: holds a body in our fields while its job is admitted, and names fields at fault
            as the line does. Raises: Problem.
        answer: body of the answer about a job that has succeeded. Raises: Problem.
        error: body of the answer about a problem.
        status: status of that answer.
    """

    url: str
    check: Callable[[Body], NamesModel]
    request: Callable[[FrontEnd, Body], AbstractAsyncContextManager[GenerateRequest]]
    answer: Callable[[FrontEnd, Job, Body], Awaitable[Body]]
    error: Callable[[Problem], Body] = problem_body
    status: Callable[[Problem], int] = lambda problem: problem.status


def _checked(body: Body) -> GenerateRequest:
    """Raises: Invalid."""
    request = parse_body(body)
    if request.output and request.output.inline:
        said = "not in a batch; fetch each output by its url"
        raise Invalid([FieldError("output.inline", said)])
    return request


@asynccontextmanager
async def _request(front: FrontEnd, body: Body) -> AsyncIterator[GenerateRequest]:
    yield _checked(body)


async def _answer(front: FrontEnd, job: Job, body: Body) -> Body:
    return (await show(front, job)).model_dump(mode="json")


GENERATE = BatchEndpoint("/v1/generate", _checked, _request, _answer)
