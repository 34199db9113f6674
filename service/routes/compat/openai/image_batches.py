"""Batch endpoint for lines in the format of `client.images.generate`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.admission.parse import parse_as, parse_body
from service.batches.endpoint import BatchEndpoint, Body
from service.errors.problems import FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import FieldWarning, Job
from service.routes.compat.names import renaming
from service.routes.compat.openai.errors import error_of, status_of
from service.routes.compat.openai.extra_fields import split_images
from service.routes.compat.openai.field_values import naming_sizes
from service.routes.compat.openai.image_admission import warnings_of
from service.routes.compat.openai.image_answers import to_images_view
from service.routes.compat.openai.image_requests import (
    ImageRequest,
    field_names,
    to_generate_fields,
)
from service.schemas.request import GenerateRequest


def _parse(body: Body) -> ImageRequest:
    """Parse a batch line's body as an image request. Raises: Invalid."""
    request = parse_as(ImageRequest, body)
    if request.stream:
        raise Invalid([FieldError("stream", "not in a batch; leave it out")])
    return request


def _parse_and_check(body: Body) -> ImageRequest:
    """Parse a batch line's image request, and check its additional fields without a model.

    Raises: Invalid.
    """
    request = _parse(body)
    extra = split_images(request.model_extra or {})
    extra.pop("aspect_ratio", None)
    parse_body({"prompt": request.prompt, **extra})
    return request


@asynccontextmanager
async def _request(front: FrontEnd, body: Body) -> AsyncIterator[GenerateRequest]:
    """Convert a batch line's image request; errors name the body's fields. Raises: Problem."""
    request = _parse(body)
    spec = (await front.models.get(request.model)).spec
    fields = to_generate_fields(request, spec, front.settings.limits)
    with naming_sizes(spec, front.settings.limits, request.size), renaming(field_names(request)):
        yield parse_body(fields)


async def _answer(front: FrontEnd, job: Job, body: Body) -> Body:
    """Build the response body of a successful batch line. Raises: Problem: a file is gone."""
    if body.get("response_format") == "url":
        base = (front.settings.server.public_url or "").rstrip("/")
        links = [base + await front.links.path(job.id, output.index) for output in job.outputs]
        return to_images_view(job, links=links).model_dump(mode="json")
    data = [await front.outputs.read(output) for output in job.outputs]
    return to_images_view(job, files=data).model_dump(mode="json")


async def _warnings(front: FrontEnd, body: Body) -> list[FieldWarning]:
    request = _parse(body)
    return warnings_of(request, (await front.models.get(request.model)).spec)


def _error(problem: Problem) -> Body:
    return {"error": error_of(problem)}


IMAGES = BatchEndpoint(
    "/v1/images/generations", _parse_and_check, _request, _answer, _error, status_of, _warnings
)
