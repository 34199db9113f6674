"""/v1/jobs: list and read jobs, stream their events, download outputs, cancel and delete."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AfterValidator, WithJsonSchema

from service.errors.problems import FieldError, Invalid, NotFound
from service.front_end.front_end import Front, Tenant, no_such_job
from service.http.headers import is_head
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import JobState
from service.jobs.model.job_filter import JobFilter
from service.responses.render import (
    events_answer,
    events_head,
    job_view,
    json_answer,
    output_answer,
    output_head,
)
from service.routes.documented_responses import CANCEL, EVENTS, OUTPUT, problems
from service.schemas.response import JobPage, JobView

_FORMAT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def _whole(text: str) -> str:
    """Parse a query parameter for a timestamp with a time zone. Raises: ValueError."""
    if not _FORMAT.fullmatch(text):
        raise ValueError(
            "must be a time with its zone, such as 2026-01-31T12:00:00Z; a + is written as %2B"
        )
    datetime.fromisoformat(text)
    return text


Timestamp = Annotated[
    str, AfterValidator(_whole), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""Text of a time, such as `2026-01-31T12:00:00.250Z`."""


def microseconds(timestamp: str) -> int:
    """Convert a `Timestamp` parameter to microseconds since the epoch."""
    return (datetime.fromisoformat(timestamp) - _EPOCH) // _US


MS_US = timedelta(milliseconds=1) // timedelta(microseconds=1)
"""Microseconds of a millisecond, the precision of times in responses."""

State = Annotated[JobState | None, Query(description="Only jobs in this state.")]
Model = Annotated[
    str | None, Query(max_length=200, description="Only jobs of this model, by its `name`.")
]
Key = Annotated[
    str | None, Query(max_length=200, description="Only jobs whose `metadata` has this name.")
]
Value = Annotated[
    str | None,
    Query(max_length=512, description="Only jobs whose `metadata_key` has this text."),
]
After = Annotated[Timestamp | None, Query(description="Only jobs whose `created_at` is later.")]
Before = Annotated[Timestamp | None, Query(description="Only jobs whose `created_at` is earlier.")]


async def filter_of_query(
    state: State = None,
    model: Model = None,
    metadata_key: Key = None,
    metadata_value: Value = None,
    created_after: After = None,
    created_before: Before = None,
) -> JobFilter:
    """Build a job filter from the query parameters. Raises: Invalid."""
    if metadata_value is not None and metadata_key is None:
        raise Invalid([FieldError("metadata_value", "needs metadata_key, whose value it is")])
    return JobFilter(
        state=state,
        model=model,
        metadata_key=metadata_key,
        metadata_value=metadata_value,
        created_from_us=_next_ms(created_after) if created_after else None,
        created_before_us=_whole_ms(created_before) if created_before else None,
    )


def _next_ms(timestamp: str) -> int:
    """Return the first microsecond whose displayed time is later than the timestamp."""
    return (microseconds(timestamp) // MS_US + 1) * MS_US


def _whole_ms(timestamp: str) -> int:
    """Return the first microsecond whose displayed time is not earlier than the timestamp."""
    return -(-microseconds(timestamp) // MS_US) * MS_US


router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MAX_PAGE = 100

JobId = Annotated[str, Path(description="A job's `id`.")]


@router.get("", response_model=JobPage, responses=problems(401, 404, 422, 503))
async def list_jobs(
    front: Front,
    tenant: Tenant,
    only: Annotated[JobFilter, Depends(filter_of_query)],
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Maximum number of jobs of the page.")
    ] = 20,
    after: Annotated[str | None, Query(description="Cursor: `next` of the previous page.")] = None,
) -> Response:
    """Return a page of the tenant's jobs, newest first, that match every given filter.

    With `model` or `metadata_key` one call scans 1,000 jobs. Hence a page may contain fewer than
    `limit` jobs, or none, while `next` is set.
    """
    try:
        jobs = await front.queue.list(tenant=tenant, limit=limit, after=after, only=only)
    except UnknownCursor as error:
        raise NotFound(str(error), errors=[FieldError("after", "there is no such job")]) from None
    views = await asyncio.gather(*(job_view(front, job) for job in jobs))
    page = JobPage(data=views, has_more=jobs.next is not None, next=jobs.next)
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/{job_id}", response_model=JobView, responses=problems(401, 404, 429, 503))
async def get_job(job_id: JobId, request: Request, front: Front, tenant: Tenant) -> Response:
    """Return a job by its id."""
    job = await front.job(job_id, tenant)
    return await json_answer(front, job, front.client_of(request, tenant))


@router.delete("/{job_id}", status_code=204, responses=problems(401, 404, 503))
async def delete_job(job_id: JobId, front: Front, tenant: Tenant) -> Response:
    """Delete a job with its outputs; a job that has not ended is canceled first."""
    await front.delete(await front.job(job_id, tenant))
    return Response(status_code=204)


@router.post("/{job_id}/cancel", response_model=JobView, responses=CANCEL)
async def cancel_job(job_id: JobId, request: Request, front: Front, tenant: Tenant) -> Response:
    """Cancel a job within one denoising step; a job that has ended is unchanged."""
    job = await front.job(job_id, tenant)
    canceled = await front.queue.cancel(job.id)
    if canceled is None:
        raise no_such_job(job_id)
    return await json_answer(front, canceled, front.client_of(request, tenant))


@router.get("/{job_id}/events", **EVENTS)
async def stream_job_events(
    job_id: JobId, request: Request, front: Front, tenant: Tenant
) -> Response:
    """Stream a job's events: past events, then each as it happens, up to the end state.

    `Last-Event-ID` resumes after that event.
    """
    job = await front.job(job_id, tenant)
    if is_head(request):
        return events_head(job)
    with front.waits.holding(front.client_of(request, tenant), 1) as waiting:
        return events_answer(front, job, request.headers, waiting)


@router.get("/{job_id}/outputs/{index}", **OUTPUT)
async def get_job_output(
    job_id: JobId,
    index: Annotated[int, Path(ge=0, description="An output's `index`.")],
    request: Request,
    front: Front,
    tenant: Tenant,
) -> Response:
    """Download one output, in full or as a byte range."""
    job = await front.job(job_id, tenant)
    if is_head(request):
        return await output_head(front, job, index, request.headers)
    client = front.client_of(request, tenant)
    return await output_answer(front, job, index, request.headers, client)
