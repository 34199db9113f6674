"""Request and response bodies of OpenAI's batch API, and its endpoints for lines with images.

Source: openai-python, src/openai/types/batch.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from service.admission.parse import parse_as, parse_body
from service.batches.endpoint import GENERATE, BatchEndpoint, Body
from service.errors.problems import FieldError, Invalid, Problem
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import FieldWarning, Job
from service.routes.compat.endpoint import CompatibleRequestBody
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
from service.schemas.examples import Example, schema_example
from service.schemas.request import GenerateRequest
from service.schemas.response import View


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


MAX_HOURS = 168
MAX_ID_CHARS = 64
HOURS = "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$"
"""Pattern of a completion window, up to `MAX_HOURS`."""
WINDOW = re.compile(HOURS)

ENDPOINTS: dict[str, BatchEndpoint] = {endpoint.url: endpoint for endpoint in (GENERATE, IMAGES)}
"""Endpoints that a batch's lines may call, by `url`."""

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class BatchRequest(CompatibleRequestBody):
    """Request to create a batch, in OpenAI's format."""

    model_config = ConfigDict(
        json_schema_extra=schema_example(
            {
                "input_file_id": "file-0f8a1c2d3e4b5a69",
                "endpoint": "/v1/generate",
                "completion_window": "24h",
                "metadata": {"of": "us"},
            }
        )
    )

    input_file_id: Annotated[str, Field(max_length=MAX_ID_CHARS)]
    """Id of an uploaded file with `purpose` batch."""
    endpoint: Annotated[str, Field(json_schema_extra={"enum": [*ENDPOINTS]})]
    """`url` of all lines."""
    completion_window: Annotated[str, Field(json_schema_extra={"pattern": HOURS})]
    """`24h`, or another number of hours up to 168. Requests that have not ended by then are
    dropped."""
    metadata: Metadata | None = None
    """Up to 16 texts, returned unchanged."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint not in ENDPOINTS:
            raise ValueError(f"must be one of {', '.join(ENDPOINTS)}")
        return endpoint

    @field_validator("completion_window")
    @classmethod
    def _hours(cls, window: str) -> str:
        if not WINDOW.fullmatch(window):
            raise ValueError(f"must be a number of hours up to {MAX_HOURS}, such as 24h")
        return window

    @property
    def window_s(self) -> float:
        """Return the batch's completion window in seconds."""
        return 3600.0 * int(self.completion_window.removesuffix("h"))


BATCH: Example = {
    "id": "batch_0f8a1c2d3e4b5a69",
    "object": "batch",
    "endpoint": "/v1/generate",
    "errors": None,
    "input_file_id": "file-0f8a1c2d3e4b5a69",
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1769860800,
    "in_progress_at": 1769860801,
    "expires_at": 1769947200,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 100, "completed": 17, "failed": 0},
    "metadata": {"of": "us"},
}


class RequestCounts(View):
    """Counts of a batch's lines by outcome, in OpenAI's format."""

    total: int
    """Number of all lines, once the file is validated."""
    completed: int
    """Number of lines whose job succeeded."""
    failed: int
    """Number of lines that were rejected, whose job failed, or that were dropped."""


class LineErrorView(View):
    """Error in one line of a batch's input file."""

    code: str
    """Kind of the error, for programs."""
    message: str
    """Message for people: what is wrong and what to do."""
    line: int | None = None
    """Number of the line, from 1; null: the whole file."""
    param: str | None = None
    """Wrong field; null if the error concerns no single field."""


class BatchErrors(View):
    """Reasons why a batch's input file was rejected."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[LineErrorView]
    """Errors, at most 100."""


class BatchView(View):
    """Batch in OpenAI's format. Times are seconds since the epoch."""

    model_config = ConfigDict(json_schema_extra=schema_example(BATCH))

    id: str
    """Id of the batch."""
    object: Literal["batch"] = "batch"
    """Always `batch`."""
    endpoint: str
    """`url` of all lines."""
    errors: BatchErrors | None = None
    """Reasons why the input file was rejected; null otherwise."""
    input_file_id: str
    """File with the requests."""
    completion_window: str
    """Hours after which unfinished requests are dropped."""
    status: str
    """`validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or
    `cancelled`."""
    output_file_id: str | None = None
    """File with the results of successful lines."""
    error_file_id: str | None = None
    """File with the results of all other lines."""
    created_at: int
    """Time when the batch was accepted."""
    in_progress_at: int | None = None
    """Time when the input file was validated; null until then, like the times below."""
    expires_at: int
    """Time after which unfinished requests are dropped."""
    finalizing_at: int | None = None
    """Time when the last line ended."""
    completed_at: int | None = None
    """Time when the result files were complete."""
    failed_at: int | None = None
    """Time when the input file was rejected."""
    expired_at: int | None = None
    """Time when the unfinished requests were dropped."""
    cancelling_at: int | None = None
    """Time when a client requested the cancellation."""
    cancelled_at: int | None = None
    """Time when the cancellation was complete."""
    request_counts: RequestCounts
    """Counts of the lines."""
    metadata: dict[str, str] | None = None
    """Texts of the request, unchanged."""


class BatchPage(View):
    """Page of batches in OpenAI's format, newest first."""

    model_config = ConfigDict(
        json_schema_extra=schema_example(
            {
                "object": "list",
                "data": [BATCH],
                "first_id": BATCH["id"],
                "last_id": BATCH["id"],
                "has_more": False,
            }
        )
    )

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[BatchView]
    """Batches of this page."""
    first_id: str | None = None
    """Id of the page's first batch; null if empty."""
    last_id: str | None = None
    """Id of the page's last batch: `after` of the next page."""
    has_more: bool
    """True if there is a next page."""
