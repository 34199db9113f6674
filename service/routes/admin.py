"""/v1/admin: operators' view of all tenants and their actions, each recorded in the audit log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from service.admission.parse import parse_as
from service.errors.problems import Conflict, FieldError, NotFound
from service.front_end import lora_uploads
from service.front_end.front_end import Front, FrontEnd, no_such_job
from service.http.body import read_json
from service.jobs.aliases import MAX_NAME_CHARS
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import JobState
from service.jobs.operations import AllJobsFilter, Kind, Pause, Sleep
from service.operators.audit import AuditLog, Operator
from service.operators.caller import OperatorOfCall
from service.operators.commands import acts_of_day
from service.routes.documented_responses import json_body, problems
from service.schemas.admin import (
    AdminJobPage,
    AdminJobView,
    OverviewView,
    PauseRequest,
    PausesView,
    Reason,
    SleepsView,
    view_job,
    view_pauses,
    view_sleeps,
    view_waiting,
    view_workers,
)
from service.schemas.audit import AuditPage
from service.schemas.response import LoraPage, view_loras

router = APIRouter(prefix="/v1/admin", tags=["admin"])

B = TypeVar("B", bound=Reason)

MAX_BODY_BYTES = 4096
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
MAX_PAGE = 100
FAILED = 20
"""Number of failed jobs in the overview."""
KINDS: Mapping[str, Kind] = {"models": "model", "pools": "pool"}
READS, ACTS = problems(401, 403, 422, 503), problems(400, 401, 403, 404, 413, 415, 422, 503)
PAUSES = problems(400, 401, 403, 413, 415, 422, 503)
"""Responses of pause; 404 is missing since absent models and pools can be paused, too."""


def _spelled(text: object) -> date:
    """Parse a query parameter for a day in RFC 3339 format; reject numbers. Raises: ValueError."""
    if not (isinstance(text, str) and DAY.fullmatch(text)):
        raise ValueError("must be a day, such as 2026-01-31")
    return date.fromisoformat(text)


def _printable(name: str) -> str:
    """Return a name that is safe for logs and metrics. Raises: ValueError."""
    if not name.isprintable():
        raise ValueError("has characters that cannot be printed")
    return name


Day = Annotated[
    date, BeforeValidator(_spelled), WithJsonSchema({"type": "string", "format": "date"})
]
JobId = Annotated[str, Path(description="A job's `id`.")]
Things = Annotated[Literal["models", "pools"], Path(description="Kind of what to pause or resume.")]
DeletionReason = Annotated[
    str, Query(alias="reason", max_length=500, description="Reason, for the audit log.")
]
PoolName = Annotated[
    str,
    Path(
        description="Name of a pool in the settings, or of one worker.",
        min_length=1,
        max_length=MAX_NAME_CHARS,
    ),
    AfterValidator(_printable),
]
Name = Annotated[
    str,
    Path(
        description="Name of a model; for pools, of a pool in the settings or of one worker.",
        min_length=1,
        max_length=MAX_NAME_CHARS,
    ),
    AfterValidator(_printable),
]


@router.get("/overview", responses=READS)
async def get_overview(front: Front, operator: OperatorOfCall) -> OverviewView:
    """Waiting tenants, workers, pauses, running jobs, and the last failures."""
    queue = front.queue
    running, workers = await queue.running(), await queue.workers()
    return OverviewView(
        waiting=view_waiting(await queue.backlog(await queue.models())),
        workers=view_workers(workers, running),
        paused=view_pauses(await queue.pauses()),
        running=[view_job(job) for job in running],
        failed=[view_job(job) for job in await queue.failures(FAILED)],
    )


@router.get("/jobs", responses=problems(401, 403, 404, 503))
async def list_all_jobs(
    front: Front,
    operator: OperatorOfCall,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    tenant: Annotated[
        str | None, Query(max_length=200, description=("Only jobs of this tenant."))
    ] = None,
    model: Annotated[
        str | None, Query(max_length=200, description=("Only jobs of this model."))
    ] = None,
    served_by: Annotated[
        str | None,
        Query(
            max_length=200,
            description=("Only jobs run by this version of an alias, or by this model."),
        ),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Maximum number of jobs of the page.")
    ] = 20,
    after: Annotated[str | None, Query(description="Cursor: `next` of the previous page.")] = None,
) -> AdminJobPage:
    """Return a page of all tenants' jobs, newest first.

    One call scans 1,000 jobs. Hence a page may contain fewer than `limit` jobs, or none, while
    `next` is set.
    """
    try:
        only = AllJobsFilter(state, tenant, model, served_by)
        jobs = await front.queue.any_jobs(only, limit, after)
    except UnknownCursor as error:
        raise NotFound(str(error), errors=[FieldError("after", "there is no such job")]) from None
    return AdminJobPage(data=[view_job(job) for job in jobs], next=jobs.next)


@router.post("/jobs/{job_id}/cancel", responses=ACTS, **json_body("Reason"))
async def cancel_any_job(
    job_id: JobId, request: Request, front: Front, operator: OperatorOfCall
) -> AdminJobView:
    """Cancel any tenant's job within one denoising step; a job that has ended is unchanged."""
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "cancel job", job_id, body.reason):
        job = await front.queue.cancel(job_id)
        if job is None:
            raise no_such_job(job_id)
    return view_job(job)


@router.post("/jobs/{job_id}/requeue", responses={**ACTS, **problems(409)}, **json_body("Reason"))
async def requeue_job(
    job_id: JobId, request: Request, front: Front, operator: OperatorOfCall
) -> AdminJobView:
    """Return a running job to the queue.

    It keeps its position and its snapshots, and the attempt does not count. The same worker may
    claim it again, unless the worker is paused.
    """
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "requeue job", job_id, body.reason):
        before = await front.queue.take_back(job_id)
        job = await front.queue.get(job_id)
        if before is None or job is None:
            raise no_such_job(job_id)
        if before.ended:
            raise Conflict(
                f"the job has {before}: an end is final and was reported to the client; send the"
                " request again to create another job",
                code="job_ended",
            )
    return view_job(job)


@router.delete("/jobs/{job_id}", status_code=204, responses=problems(401, 403, 404, 503))
async def delete_any_job(
    job_id: JobId, front: Front, operator: OperatorOfCall, reason: DeletionReason = ""
) -> Response:
    """Delete any tenant's job with its outputs; a job that has not ended is canceled first."""
    async with _audit(front).recording(operator, "delete job", job_id, reason):
        job = await front.queue.get(job_id)
        if job is None:
            raise no_such_job(job_id)
        await front.delete(job)
    return Response(status_code=204)


@router.post("/{things}/{name:path}/pause", responses=PAUSES, **json_body("PauseRequest"))
async def pause_things(
    things: Things, name: Name, request: Request, front: Front, operator: OperatorOfCall
) -> PausesView:
    """Pause a model, a pool, or one worker: it claims no jobs until it is resumed.

    Requests are still accepted, and wait. Running jobs continue, unless `drain` is set: then they
    are requeued for other workers and keep their finished steps. A name that does not exist yet is
    paused once it appears; `warning` reports this.
    """
    body, kind = await _body(request, front, operator, PauseRequest), KINDS[things]
    act = f"{'drain' if body.drain else 'pause'} {kind}"
    async with _audit(front).recording(operator, act, name, body.reason):
        names = await _names_of(front, kind)
        operator_name = operator.name or operator.address
        pause = Pause(by=operator_name, at=time.time(), reason=body.reason, drains=body.drain)
        await front.queue.pause(kind, name, pause)
    absent = (
        None
        if name in names
        else (f"{_absent(kind, name, names)}: it will be paused once it registers")
    )
    return PausesView(data=view_pauses(await front.queue.pauses()), warning=absent)


@router.post("/{things}/{name:path}/resume", responses=ACTS, **json_body("Reason"))
async def resume_things(
    things: Things, name: Name, request: Request, front: Front, operator: OperatorOfCall
) -> PausesView:
    """Resume a paused model, pool or worker, which then claims jobs again."""
    body, kind = await _body(request, front, operator, Reason), KINDS[things]
    async with _audit(front).recording(operator, f"resume {kind}", name, body.reason):
        if not await front.queue.resume(kind, name):
            raise NotFound(f"no {kind} {name!r} is paused", code="not_paused")
    return PausesView(data=view_pauses(await front.queue.pauses()))


@router.post("/pools/{name:path}/sleep", responses=ACTS, **json_body("Reason"))
async def put_pool_to_sleep(
    name: PoolName, request: Request, front: Front, operator: OperatorOfCall
) -> SleepsView:
    """Free the devices of a pool, or of one worker, as soon as it is idle.

    Its weights move to host memory, and clients can still send requests. A job for one of its
    models, or an operator, wakes it. Pools that keep several models on their devices, and slices
    that span hosts, stay awake.
    """
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "sleep pool", name, body.reason):
        names = await _names_of(front, "pool")
        if name not in names:
            raise NotFound(_absent("pool", name, names), code="pool_not_found")
        operator_name = operator.name or operator.address
        await front.queue.put_to_sleep(
            name, Sleep(by=operator_name, at=time.time(), reason=body.reason)
        )
    return SleepsView(data=view_sleeps(await front.queue.sleeps()))


@router.post("/pools/{name:path}/wake", responses=ACTS, **json_body("Reason"))
async def wake_pool(
    name: PoolName, request: Request, front: Front, operator: OperatorOfCall
) -> SleepsView:
    """Load a sleeping pool's weights onto its devices before a job arrives."""
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "wake pool", name, body.reason):
        if not await front.queue.wake(name):
            raise NotFound(f"no pool {name!r} was put to sleep", code="not_asleep")
    return SleepsView(data=view_sleeps(await front.queue.sleeps()))


@router.get("/loras", responses=READS)
async def list_tenant_loras(
    front: Front,
    operator: OperatorOfCall,
    tenant: Annotated[
        str, Query(min_length=1, max_length=200, description="Tenant that owns the adapters.")
    ],
) -> LoraPage:
    """List the adapters that a tenant uploaded, by name, without previews and trigger words."""
    views = view_loras((await front.queue.loras(tenant)).values()).data
    plain = [view.model_copy(update={"preview": None, "trigger": ""}) for view in views]
    return LoraPage(data=sorted(plain, key=lambda view: view.name))


@router.delete("/loras/{tenant}/{name}", status_code=204, responses=problems(401, 403, 404, 503))
async def evict_lora(
    tenant: Annotated[str, Path(description="Tenant that owns the adapter.")],
    name: Annotated[str, Path(description="The adapter's `name`.")],
    front: Front,
    operator: OperatorOfCall,
    reason: DeletionReason = "",
) -> Response:
    """Delete an adapter that a tenant uploaded. Jobs that wait for it fail with `lora_gone`."""
    async with _audit(front).recording(operator, "evict adapter", f"{tenant}/{name}", reason):
        await lora_uploads.delete(front, tenant, name)
    return Response(status_code=204)


@router.get("/audit", responses=READS)
async def list_acts(
    front: Front,
    operator: OperatorOfCall,
    day: Annotated[Day | None, Query(description="Day (UTC). Default: today.")] = None,
) -> AuditPage:
    """List operators' actions of one day, oldest first, including those of CLI commands."""
    day = day or datetime.now(UTC).date()
    return AuditPage(data=await acts_of_day(front.queue.redis, front.store, day))


def _audit(front: FrontEnd) -> AuditLog:
    return AuditLog(front.store)


async def _body(request: Request, front: FrontEnd, operator: Operator, kind: type[B]) -> B:
    """Read an operator's JSON body; the required content type blocks HTML forms of other sites."""
    with front.bodies.holding(operator.key_id or operator.address) as hold:
        return await read_json(request, MAX_BODY_BYTES, hold, lambda body: parse_as(kind, body))


async def _names_of(front: FrontEnd, kind: Kind) -> set[str]:
    """Return the names of all models ever served, or of current pools and workers."""
    if kind == "model":
        return set(await front.queue.models())
    return {name for worker in await front.queue.workers() for name in (worker.name, worker.pool)}


def _absent(kind: Kind, name: str, existing: set[str]) -> str:
    names = ", ".join(sorted(existing)) or "none"
    return f"there is no {kind} {name!r} now; available: {names}"
