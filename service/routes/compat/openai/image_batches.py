"""Lines of batches that ask for images as `client.images.generate` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.admission.parse import parse_as, parse_body
from service.batches.endpoint import BatchEndpoint, Body
from service.errors.problems import FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job
from service.routes.compat.names import renaming
from service.routes.compat.openai.errors import error_of, status_of
from service.routes.compat.openai.image_answers import shown
from service.routes.compat.openai.image_requests import ImageRequest, names_of, translated
from service.routes.compat.openai.sizes import naming_sizes
from service.schemas.request import GenerateRequest


def _asked(body: Body) -> ImageRequest:
    """Raises: Invalid."""
    asked = parse_as(ImageRequest, body)
    if asked.stream:
        raise Invalid([FieldError("stream", "not in a batch; leave it out")])
    return asked


def _checked(body: Body) -> ImageRequest:
    """Raises: Invalid: also of further fields, as far as they can be checked without a model."""
    asked = _asked(body)
    parse_body({"prompt": asked.prompt, **(asked.model_extra or {})})
    return asked


@asynccontextmanager
async def _request(front: FrontEnd, body: Body) -> AsyncIterator[GenerateRequest]:
    """Raises: Problem: also of what is done with the request, in the names of the body."""
    asked = _asked(body)
    spec = (await front.models.get(asked.model)).spec
    fields = translated(asked, spec)
    with naming_sizes(spec, front.settings.limits, asked.size), renaming(names_of(asked)):
        yield parse_body(fields)


async def _answer(front: FrontEnd, job: Job, body: Body) -> Body:
    """Raises: Problem: a file is gone or damaged."""
    if body.get("response_format") == "url":
        base = (front.settings.server.public_url or "").rstrip("/")
        links = [base + await front.links.path(job.id, output.index) for output in job.outputs]
        return shown(job, links=links).model_dump(mode="json")
    data = [await front.outputs.read(output) for output in job.outputs]
    return shown(job, files=data).model_dump(mode="json")


def _error(problem: Problem) -> Body:
    return {"error": error_of(problem)}


IMAGES = BatchEndpoint("/v1/images/generations", _checked, _request, _answer, _error, status_of)
