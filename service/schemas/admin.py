"""Request and response bodies of /v1/admin: for operators, across tenants, without prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.model.job import Job, JobError, JobState, Stage
from service.jobs.operations import Pause, Sleep, TenantBacklog, WorkerStatus
from service.schemas import examples
from service.schemas.examples import schema_example
from service.schemas.response import View
from service.tracing.log_format import rfc3339

MAX_REASON_CHARS = 500


class Reason(BaseModel):
    """Body of an operator's request that needs only a reason."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        json_schema_extra=schema_example({"reason": "a new driver"}),
    )

    reason: str = Field("", max_length=MAX_REASON_CHARS)
    """Reason, recorded in the audit log and shown to affected users."""


class PauseRequest(Reason):
    """Body of a request to pause a model or pool."""

    drain: bool = False
    """Whether to suspend running jobs with a snapshot, so that other workers resume them."""


class AdminJobView(View):
    """Job as operators see it: tenant, state and progress, without its content."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.ADMIN_JOB))

    id: str
    """The job's id."""
    tenant: str
    """Tenant of the job."""
    state: JobState
    """Current state."""
    model: str
    """Model named in the request."""
    served_by: str
    """Name of the model that serves it; for an alias, the version that was chosen."""
    created_at: str
    """Time of acceptance (RFC 3339)."""
    started_at: str | None = None
    """Time of its last claim."""
    finished_at: str | None = None
    """Time of its end."""
    stage: Stage | None = None
    """Stage of a running job."""
    step: int
    """Denoising steps done, over all images."""
    steps: int
    """Denoising steps to do, over all images."""
    pool: str | None = None
    """Worker that claimed it last."""
    attempts: int
    """Number of claims."""
    deaths: int
    """Number of workers that crashed while running it since its last progress."""
    device_seconds: float
    """Device-seconds used."""
    error: JobError | None = None
    """Failure reason."""


class AdminJobPage(View):
    """Page of all tenants' jobs, for operators."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.ADMIN_JOBS))

    data: list[AdminJobView]
    """Jobs, newest first."""
    next: str | None = None
    """Value of `after` for the next page; null on the last."""


class PauseView(View):
    """Pause of a model, pool or worker."""

    kind: Literal["model", "pool"]
    """Kind: a model, or a pool or one of its workers."""
    name: str
    """Name of the model, pool or worker."""
    by: str
    """Operator who set the pause."""
    at: str
    """Time of the pause (RFC 3339)."""
    reason: str
    """Reason given by the operator."""
    drains: bool
    """Whether running jobs are suspended, too."""


class PausesView(View):
    """Active pauses of models, pools and workers."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.PAUSES))

    data: list[PauseView]
    """Pauses, the oldest first."""
    warning: str | None = None
    """Hint that nothing with the paused name is registered now; null if something is."""


class SleepView(View):
    """Pool or worker that an operator put to sleep."""

    name: str
    """Name of the pool or worker."""
    by: str
    """Operator who put it to sleep."""
    at: str
    """Time at which it was put to sleep (RFC 3339)."""
    reason: str
    """Reason given by the operator."""


class SleepsView(View):
    """Pools and workers put to sleep and not woken by an operator. Jobs wake them, too."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.SLEEPS))

    data: list[SleepView]
    """Sleeping pools and workers, the longest sleeping first."""


class WorkerView(View):
    """Worker that is registered now, with its capacity and running jobs."""

    name: str
    """The worker's name."""
    pool: str
    """Pool of the settings that contains it."""
    model: str
    """Model that it serves."""
    ready: bool
    """Whether it has finished its warm-up and is not draining."""
    slots: int | None = None
    """Number of images that it denoises together; null until reported."""
    layout: str | None = None
    """Layout of the model on its devices."""
    running: int
    """Number of jobs that it runs."""
    asleep: bool = False
    """Whether its devices hold no model until a job arrives."""


class WaitingView(View):
    """Queued jobs of one tenant for one model."""

    model: str
    """The model."""
    tenant: str
    """The tenant."""
    jobs: int
    """Number of its queued jobs."""
    device_seconds: float
    """Predicted device-seconds of these jobs."""


class OverviewView(View):
    """Current state of the whole service: workers, waiting, running and failed jobs."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.OVERVIEW))

    waiting: list[WaitingView]
    """Tenants with queued jobs by model, most device-seconds first."""
    workers: list[WorkerView]
    """Registered workers."""
    paused: list[PauseView]
    """Pauses, the oldest first."""
    running: list[AdminJobView]
    """Running jobs, the longest running first."""
    failed: list[AdminJobView]
    """Last failed jobs, newest first."""


def view_job(job: Job) -> AdminJobView:
    """Convert a job to its view for operators."""
    model = job.request.get("model", job.model)
    return AdminJobView(
        id=job.id,
        tenant=job.tenant,
        state=job.state,
        model=model,
        served_by=job.served_by or model,
        created_at=rfc3339(job.created_at),
        started_at=_time(job.started_at),
        finished_at=_time(job.finished_at),
        stage=job.detail.stage if job.detail else None,
        step=job.step,
        steps=job.steps,
        pool=job.pool,
        attempts=job.attempts,
        deaths=len(job.deaths),
        device_seconds=job.usage.device_seconds,
        error=job.error,
    )


def view_pauses(pauses: Mapping[tuple[Literal["model", "pool"], str], Pause]) -> list[PauseView]:
    """Convert pauses of workers to views, the longest paused first."""
    return [
        PauseView(
            kind=kind,
            name=name,
            by=pause.by,
            at=rfc3339(pause.at),
            reason=pause.reason,
            drains=pause.drains,
        )
        for (kind, name), pause in sorted(pauses.items(), key=lambda item: item[1].at)
    ]


def view_sleeps(sleeps: Mapping[str, Sleep]) -> list[SleepView]:
    """Convert sleeping pools and workers to views, the longest sleeping first."""
    return [
        SleepView(name=name, by=sleep.by, at=rfc3339(sleep.at), reason=sleep.reason)
        for name, sleep in sorted(sleeps.items(), key=lambda item: item[1].at)
    ]


def view_workers(workers: Sequence[WorkerStatus], running: Sequence[Job]) -> list[WorkerView]:
    """Convert workers to views for operators, with the number of jobs of each, ordered by name."""
    return [
        WorkerView(
            name=worker.name,
            pool=worker.pool,
            model=worker.model,
            ready=worker.is_ready,
            slots=worker.facts.slots if worker.facts else None,
            layout=worker.facts.layout if worker.facts else None,
            running=sum(job.pool == worker.name for job in running),
            asleep=worker.facts.asleep if worker.facts else False,
        )
        for worker in sorted(workers, key=lambda worker: worker.name)
    ]


def view_waiting(waiting: Sequence[TenantBacklog]) -> list[WaitingView]:
    """Convert queue totals by tenant and model to views."""
    return [WaitingView(**vars(entry)) for entry in waiting]


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)
