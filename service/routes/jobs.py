"""/v1/jobs: list and read jobs, stream their events, download outputs, cancel and delete."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.errors.problems import FieldError, NotFound
from service.front_end.front_end import Front, Tenant, no_such_job
from service.http.headers import is_head
from service.jobs.model.errors import UnknownCursor
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
from service.routes.job_filters import filter_of_query
from service.schemas.response import JobPage, JobView

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
