"""Bodies that /v1/admin takes and answers: for operators, across tenants, without prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.model.job import Job, JobError, JobState, Stage
from service.jobs.operations import Pause, Sleep, Waiting, WorkerStatus
from service.schemas import examples
from service.schemas.examples import shown
from service.schemas.response import View, timestamp

MAX_REASON_CHARS = 500


class Reason(BaseModel):
    """Body of an act."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        json_schema_extra=shown({"reason": "a new driver"}),
    )

    reason: str = Field("", max_length=MAX_REASON_CHARS)
    """Reason, for the audit log and for whoever meets the effect."""


class PauseRequest(Reason):
    """Body of a pause."""

    drain: bool = False
    """True to put running jobs aside, with what they have done, for other pools."""


class AdminJobView(View):
    """A job as operators see it: whose it is and how it goes, and nothing that it draws."""

    model_config = ConfigDict(json_schema_extra=shown(examples.ADMIN_JOB))

    id: str
    """The job's id."""
    tenant: str
    """Tenant that it belongs to."""
    state: JobState
    """State that it is in."""
    model: str
    """Model that it was asked of."""
    served_by: str
    """Name of the model that serves it: of an alias, the version that was drawn."""
    created_at: str
    """Time of its acceptance (RFC 3339)."""
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
    """Number of pools that died with it since it last got further."""
    device_seconds: float
    """Device-seconds that it has taken."""
    error: JobError | None = None
    """Reason of its failure."""


class AdminJobPage(View):
    """A page of all tenants' jobs."""

    model_config = ConfigDict(json_schema_extra=shown(examples.ADMIN_JOBS))

    data: list[AdminJobView]
    """Jobs, newest first."""
    next: str | None = None
    """Id to go on from, as `after`; null: there are no more."""


class PauseView(View):
    """Something that is paused."""

    kind: Literal["model", "pool"]
    """Kind: a model, or a pool or one of its workers."""
    name: str
    """Name of the model, pool or worker."""
    by: str
    """Operator who has paused it."""
    at: str
    """Time of the pause (RFC 3339)."""
    reason: str
    """Reason that was given."""
    drains: bool
    """True if running jobs were put aside, too."""


class PausesView(View):
    """Everything that is paused."""

    model_config = ConfigDict(json_schema_extra=shown(examples.PAUSES))

    data: list[PauseView]
    """Pauses, the oldest first."""
    warning: str | None = None
    """Hint that nothing of the name that was paused is there now; null: something is."""


class SleepView(View):
    """A pool, or one of its workers, that was put to sleep."""

    name: str
    """Name of the pool or worker."""
    by: str
    """Operator who has put it to sleep."""
    at: str
    """Time of that (RFC 3339)."""
    reason: str
    """Reason that was given."""


class SleepsView(View):
    """Everything that was put to sleep and not woken by an operator. A job wakes it, too."""

    model_config = ConfigDict(json_schema_extra=shown(examples.SLEEPS))

    data: list[SleepView]
    """Sleeping pools and workers, the longest sleeping first."""


class WorkerView(View):
    """A worker that is there now."""

    name: str
    """The worker's name."""
    pool: str
    """Pool of the settings that it belongs to."""
    model: str
    """Model that it serves."""
    ready: bool
    """True once it has finished its warm-up, while it does not drain."""
    slots: int | None = None
    """Images that it denoises together; null where it has not said so yet."""
    layout: str | None = None
    """Layout of the model on its devices."""
    running: int
    """Jobs that it runs."""
    asleep: bool = False
    """True while no model is on its devices until a job comes."""


class WaitingView(View):
    """Queued jobs of one tenant for one model."""

    model: str
    """The model."""
    tenant: str
    """The tenant."""
    jobs: int
    """Number of its queued jobs."""
    device_seconds: float
    """Prediction of what they take."""


class OverviewView(View):
    """State of the whole service now."""

    model_config = ConfigDict(json_schema_extra=shown(examples.OVERVIEW))

    waiting: list[WaitingView]
    """Tenants with queued jobs by model, most device-seconds first."""
    workers: list[WorkerView]
    """Workers that are there."""
    paused: list[PauseView]
    """Pauses, the oldest first."""
    running: list[AdminJobView]
    """Running jobs, the longest running first."""
    failed: list[AdminJobView]
    """The last jobs that failed, newest first."""


def view_job(job: Job) -> AdminJobView:
    """Return a job as operators see it."""
    model = job.request.get("model", job.model)
    return AdminJobView(
        id=job.id,
        tenant=job.tenant,
        state=job.state,
        model=model,
        served_by=job.served_by or model,
        created_at=timestamp(job.created_at),
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
    """Return what is paused, the longest paused first."""
    return [
        PauseView(
            kind=kind,
            name=name,
            by=pause.by,
            at=timestamp(pause.at),
            reason=pause.reason,
            drains=pause.drains,
        )
        for (kind, name), pause in sorted(pauses.items(), key=lambda item: item[1].at)
    ]


def view_sleeps(sleeps: Mapping[str, Sleep]) -> list[SleepView]:
    """Return what was put to sleep, the longest sleeping first."""
    return [
        SleepView(name=name, by=sleep.by, at=timestamp(sleep.at), reason=sleep.reason)
        for name, sleep in sorted(sleeps.items(), key=lambda item: item[1].at)
    ]


def view_workers(workers: Sequence[WorkerStatus], running: Sequence[Job]) -> list[WorkerView]:
    """Return workers with the number of jobs that each runs, in the order of their names."""
    return [
        WorkerView(
            name=one.name,
            pool=one.pool,
            model=one.model,
            ready=one.is_ready,
            slots=one.facts.slots if one.facts else None,
            layout=one.facts.layout if one.facts else None,
            running=sum(job.pool == one.name for job in running),
            asleep=one.facts.asleep if one.facts else False,
        )
        for one in sorted(workers, key=lambda one: one.name)
    ]


def view_waiting(waiting: Sequence[Waiting]) -> list[WaitingView]:
    """Return who waits for what."""
    return [WaitingView(**vars(one)) for one in waiting]


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)
