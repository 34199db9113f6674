"""/v1/admin: what operators see and do, across tenants. Each act is in the audit log."""

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
from service.jobs.operations import AnyJob, Kind, Pause, Sleep
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

router = APIRouter(prefix="/v1/admin", tags=["admin"])

B = TypeVar("B", bound=Reason)

MAX_BODY_BYTES = 4096
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
MAX_PAGE = 100
FAILED = 20
"""Failed jobs of the overview."""
KINDS: Mapping[str, Kind] = {"models": "model", "pools": "pool"}
READS, ACTS = problems(401, 403, 422, 503), problems(400, 401, 403, 404, 413, 415, 422, 503)
PAUSES = problems(400, 401, 403, 413, 415, 422, 503)
"""No 404: what is not there now may be paused, too."""


def _spelled(text: object) -> date:
    """Read a day as RFC 3339 spells it, and no number. Raises: ValueError."""
    if not (isinstance(text, str) and DAY.fullmatch(text)):
        raise ValueError("wants a day, such as 2026-01-31")
    return date.fromisoformat(text)


def _printable(name: str) -> str:
    """Return a name that logs and metrics can show. Raises: ValueError: it is none."""
    if not name.isprintable():
        raise ValueError("has characters that cannot be printed")
    return name


Day = Annotated[
    date, BeforeValidator(_spelled), WithJsonSchema({"type": "string", "format": "date"})
]
JobId = Annotated[str, Path(description="A job's `id`.")]
Things = Annotated[Literal["models", "pools"], Path(description="What is meant.")]
PoolName = Annotated[
    str,
    Path(
        description="A pool's name of the settings, or one worker's.",
        min_length=1,
        max_length=MAX_NAME_CHARS,
    ),
    AfterValidator(_printable),
]
Name = Annotated[
    str,
    Path(
        description="A model's name; of pools a pool's of the settings, or one worker's.",
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
    tenant: Annotated[str | None, Query(max_length=200, description="Only this tenant's.")] = None,
    model: Annotated[str | None, Query(max_length=200, description="Only of this model.")] = None,
    served_by: Annotated[
        str | None,
        Query(max_length=200, description="Only drawn by this version of an alias, or this model."),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description="Maximum number of jobs of the page.")
    ] = 20,
    after: Annotated[
        str | None, Query(description="Where to go on: the `next` of the page before.")
    ] = None,
) -> AdminJobPage:
    """A page of all tenants' jobs, newest first.

    One call looks at 1,000 jobs, so that a page may have fewer than `limit`, even none, while
    `next` says that others follow.
    """
    try:
        only = AnyJob(state, tenant, model, served_by)
        found = await front.queue.any_jobs(only, limit, after)
    except UnknownCursor as error:
        raise NotFound(str(error), errors=[FieldError("after", "there is no such job")]) from None
    return AdminJobPage(data=[view_job(job) for job in found], next=found.next)


@router.post("/jobs/{job_id}/cancel", responses=ACTS, **json_body("Reason"))
async def cancel_any_job(
    job_id: JobId, request: Request, front: Front, operator: OperatorOfCall
) -> AdminJobView:
    """Stop a tenant's job within one denoising step; one that has ended stays as it is."""
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
    """Take a running job from its pool and put it back into the queue.

    It keeps its place and what its snapshots hold, and the attempt does not count. The same pool
    may claim it again, unless it is paused.
    """
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "requeue job", job_id, body.reason):
        before = await front.queue.take_back(job_id)
        job = await front.queue.get(job_id)
        if before is None or job is None:
            raise no_such_job(job_id)
        if before.ended:
            raise Conflict(
                f"the job has {before}: an end is final, and its client was told; send the request"
                " anew for another job",
                code="job_ended",
            )
    return view_job(job)


@router.post("/{things}/{name:path}/pause", responses=PAUSES, **json_body("PauseRequest"))
async def pause_things(
    things: Things, name: Name, request: Request, front: Front, operator: OperatorOfCall
) -> PausesView:
    """Let a model's pools, a pool, or one worker claim no jobs until it is resumed.

    Requests are accepted and wait. What runs goes on, unless it is to be drained: then it is put
    aside, with what it has done, for other pools. What is not there now is paused when it comes,
    and `warning` says so.
    """
    body, kind = await _body(request, front, operator, PauseRequest), KINDS[things]
    act = f"{'drain' if body.drain else 'pause'} {kind}"
    async with _audit(front).recording(operator, act, name, body.reason):
        there = await _known(front, kind)
        by = operator.name or operator.address
        pause = Pause(by=by, at=time.time(), reason=body.reason, drains=body.drain)
        await front.queue.pause(kind, name, pause)
    absent = None if name in there else f"{_absent(kind, name, there)}: it is paused when it comes"
    return PausesView(data=view_pauses(await front.queue.pauses()), warning=absent)


@router.post("/{things}/{name:path}/resume", responses=ACTS, **json_body("Reason"))
async def resume_things(
    things: Things, name: Name, request: Request, front: Front, operator: OperatorOfCall
) -> PausesView:
    """Let it claim jobs again."""
    body, kind = await _body(request, front, operator, Reason), KINDS[things]
    async with _audit(front).recording(operator, f"resume {kind}", name, body.reason):
        if not await front.queue.resume(kind, name):
            raise NotFound(f"no {kind} {name!r} is paused", code="not_paused")
    return PausesView(data=view_pauses(await front.queue.pauses()))


@router.post("/pools/{name:path}/sleep", responses=ACTS, **json_body("Reason"))
async def put_pool_to_sleep(
    name: PoolName, request: Request, front: Front, operator: OperatorOfCall
) -> SleepsView:
    """Free a pool's devices, or one worker's, as soon as it has nothing to do.

    Its weights go to host memory; it stays there for clients. A job for one of its models wakes it,
    or an operator. Pools whose models lie side by side, and slices on several hosts, stay awake.
    """
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "sleep pool", name, body.reason):
        there = await _known(front, "pool")
        if name not in there:
            raise NotFound(_absent("pool", name, there), code="pool_not_found")
        by = operator.name or operator.address
        await front.queue.put_to_sleep(name, Sleep(by=by, at=time.time(), reason=body.reason))
    return SleepsView(data=view_sleeps(await front.queue.sleeps()))


@router.post("/pools/{name:path}/wake", responses=ACTS, **json_body("Reason"))
async def wake_pool(
    name: PoolName, request: Request, front: Front, operator: OperatorOfCall
) -> SleepsView:
    """Bring a pool's weights back to its devices before a job comes."""
    body = await _body(request, front, operator, Reason)
    async with _audit(front).recording(operator, "wake pool", name, body.reason):
        if not await front.queue.wake(name):
            raise NotFound(f"no pool {name!r} was put to sleep", code="not_asleep")
    return SleepsView(data=view_sleeps(await front.queue.sleeps()))


@router.delete("/loras/{tenant}/{name}", status_code=204, responses=problems(401, 403, 404, 503))
async def evict_lora(
    tenant: Annotated[str, Path(description="Whose adapter it is.")],
    name: Annotated[str, Path(description="The adapter's `name`.")],
    front: Front,
    operator: OperatorOfCall,
    reason: Annotated[str, Query(max_length=500, description="Why, for the audit log.")] = "",
) -> Response:
    """Delete an adapter that a tenant has uploaded. Jobs that wait for it fail: `lora_gone`."""
    async with _audit(front).recording(operator, "evict adapter", f"{tenant}/{name}", reason):
        await lora_uploads.delete(front, tenant, name)
    return Response(status_code=204)


@router.get("/audit", responses=READS)
async def list_acts(
    front: Front,
    operator: OperatorOfCall,
    day: Annotated[Day | None, Query(description="Day (UTC), today if left out.")] = None,
) -> AuditPage:
    """Acts of operators on a day, oldest first, also by commands that no route did."""
    day = day or datetime.now(UTC).date()
    return AuditPage(data=await acts_of_day(front.queue.redis, front.store, day))


def _audit(front: FrontEnd) -> AuditLog:
    return AuditLog(front.store)


async def _body(request: Request, front: FrontEnd, operator: Operator, kind: type[B]) -> B:
    """The body, which has to be declared as JSON: no form of another page can send that."""
    with front.bodies.holding(operator.key_id or operator.address) as hold:
        return await read_json(request, MAX_BODY_BYTES, hold, lambda body: parse_as(kind, body))


async def _known(front: FrontEnd, kind: Kind) -> set[str]:
    """Return the names of models that were ever served, or of pools and workers there now."""
    if kind == "model":
        return set(await front.queue.models())
    return {known for one in await front.queue.workers() for known in (one.name, one.pool)}


def _absent(kind: Kind, name: str, there: set[str]) -> str:
    said = ", ".join(sorted(there)) or "none"
    return f"there is no {kind} {name!r} now; there is {said}"
