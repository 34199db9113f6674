"""/v1/jobs: look at jobs, follow them, fetch what they made, stop and delete them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.errors.problems import FieldError, NotFound
from service.front_end.front_end import Front, Tenant, no_such_job
from service.http.head import is_head
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job_filter import JobFilter
from service.responses.render import (
    events_answer,
    events_head,
    json_answer,
    output_answer,
    output_head,
    show,
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
    after: Annotated[
        str | None, Query(description="Where to go on: the `next` of the page before.")
    ] = None,
) -> Response:
    """A page of the tenant's jobs, newest first; of those that fit every filter that is given.

    By `model` or `metadata_key` one call looks at 1,000 jobs, so that a page may have fewer than
    `limit`, even none, while `next` says that others follow.
    """
    try:
        found = await front.queue.list(tenant=tenant, limit=limit, after=after, only=only)
    except UnknownCursor as error:
        raise NotFound(str(error), errors=[FieldError("after", "there is no such job")]) from None
    shown = await asyncio.gather(*(show(front, job) for job in found))
    page = JobPage(data=shown, has_more=found.next is not None, next=found.next)
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/{job_id}", response_model=JobView, responses=problems(401, 404, 429, 503))
async def get_job(job_id: JobId, request: Request, front: Front, tenant: Tenant) -> Response:
    """One job."""
    job = await front.job(job_id, tenant)
    return await json_answer(front, job, front.client_of(request, tenant))


@router.delete("/{job_id}", status_code=204, responses=problems(401, 404, 503))
async def delete_job(job_id: JobId, front: Front, tenant: Tenant) -> Response:
    """Delete a job with its outputs; one that has not ended is canceled first."""
    await front.delete(await front.job(job_id, tenant))
    return Response(status_code=204)


@router.post("/{job_id}/cancel", response_model=JobView, responses=CANCEL)
async def cancel_job(job_id: JobId, request: Request, front: Front, tenant: Tenant) -> Response:
    """Stop a job within one denoising step; one that has ended stays as it is."""
    job = await front.job(job_id, tenant)
    canceled = await front.queue.cancel(job.id)
    if canceled is None:
        raise no_such_job(job_id)
    return await json_answer(front, canceled, front.client_of(request, tenant))


@router.get("/{job_id}/events", **EVENTS)
async def stream_job_events(
    job_id: JobId, request: Request, front: Front, tenant: Tenant
) -> Response:
    """The job's events: those so far, then each as it happens, up to the end state's.

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
    """The bytes of one output, whole or in part."""
    job = await front.job(job_id, tenant)
    if is_head(request):
        return await output_head(front, job, index, request.headers)
    client = front.client_of(request, tenant)
    return await output_answer(front, job, index, request.headers, client)
