"""Lines of batches that ask for images as `client.images.generate` does."""

from __future__ import annotations

from service.admission.parse import parse_as, parse_body
from service.batches.endpoint import BatchEndpoint, Body
from service.errors.problems import FieldError, Invalid, Problem, problem_body
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job
from service.routes.compat.names import renaming
from service.routes.compat.openai.image_answers import shown
from service.routes.compat.openai.image_requests import ImageRequest, names_of, translated
from service.schemas.request import GenerateRequest


def _asked(body: Body) -> ImageRequest:
    """Raises: Invalid."""
    asked = parse_as(ImageRequest, body)
    if asked.stream:
        raise Invalid([FieldError("stream", "not in a batch; leave it out")])
    return asked


async def _request(front: FrontEnd, body: Body) -> GenerateRequest:
    """Raises: Problem."""
    asked = _asked(body)
    spec = (await front.models.get(asked.model)).spec
    with renaming(names_of(asked)):
        return parse_body(translated(asked, spec))


async def _answer(front: FrontEnd, job: Job, body: Body) -> Body:
    """Raises: Problem: a file is gone or damaged."""
    if body.get("response_format") == "url":
        base = (front.settings.server.public_url or "").rstrip("/")
        links = [base + await front.links.path(job.id, output.index) for output in job.outputs]
        return shown(job, links=links).model_dump(mode="json")
    data = [await front.outputs.read(output) for output in job.outputs]
    return shown(job, files=data).model_dump(mode="json")


def _error(problem: Problem) -> Body:
    return {"error": problem_body(problem)["error"]}


IMAGES = BatchEndpoint("/v1/images/generations", _asked, _request, _answer, _error)
