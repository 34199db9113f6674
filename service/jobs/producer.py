"""Acceptance of jobs: their files, their place in the queue, and the reasons for a rejection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from redis.exceptions import RedisError

from service.jobs.model import serialization
from service.jobs.model.errors import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.model.job import Job, JobState
from service.jobs.model.ledger import DeliveredOutputs
from service.jobs.model.metrics import JobEnd
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.redis import keys
from service.jobs.scripts.client import ANSWER_MS, QueueClient, Unconfirmed, new_call
from service.jobs.scripts.script import TEXT, Script, ScriptWithoutAnswer
from service.jobs.stored_jobs import Delete
from service.settings.tenants import TenantSettings

NO_LIMITS = TenantSettings()


class NewJob(NamedTuple):
    """Answer to a `Put` of a new job: values that Redis determines."""

    created_at: float
    rank: int
    """Number of its tenant's jobs that go before it."""
    usage: QuotaUsage | None
    """Quota usage of its tenant, including this job; None: it has no quotas."""


class ExistingJob(NamedTuple):
    """Answer to a `Put` whose job existed already."""

    job: Job
    is_new: bool
    """True if this very call created the job and its first answer was lost."""


class OverQuota(NamedTuple):
    """Answer to a `Put` that exceeds a quota, with the tenant's usage."""

    quota: str
    usage: QuotaUsage
    oldest: str | None
    """Id of its oldest queued job."""


Refusal = Literal["full", "conflict", "refused"]


@dataclass(frozen=True)
class Deposit(ScriptWithoutAnswer):
    """Script call that announces that files of a job are about to be stored."""

    id: str


@dataclass(frozen=True)
class Put(Script[NewJob | ExistingJob | OverQuota | Refusal]):
    """Script call that accepts a job into the queue."""

    id: str
    model: str
    tenant: str
    priority: int
    priority_s: float
    """Maximum extra wait that one level of priority may cause for other jobs."""
    deadline_at: float | None
    run_s: float | None
    """Predicted seconds alone."""
    max_queued: int
    """Maximum number of queued jobs of the model, over all tenants."""
    tenant_max_queued: int | None
    device_seconds_per_hour: float | None
    stored_bytes: int | None
    cost: float
    """Predicted device-seconds."""
    input_bytes: int
    """Bytes of its stored inputs."""
    kept: int | None
    """Number of steps of its drafts; None: no drafts."""
    draft_bytes: int
    """Bytes of its drafts, which are deleted when it ends."""
    made: DeliveredOutputs | None
    """Sums of its copied files; None: it must be generated."""
    retention_s: float
    idempotency: str | None
    """Name of the client's idempotency key."""
    digest: str
    """Digest of the request's body."""
    idempotency_ms: int
    refused: bool
    """Whether to reject a new job."""
    webhook: bool
    """Whether to announce its end by webhook."""
    fields: Sequence[str] = field(metadata=TEXT)
    """Fields of its hash: name, value, …"""

    @staticmethod
    def parse(answer: Sequence[Any]) -> NewJob | ExistingJob | OverQuota | Refusal:
        """Return the accepted job's facts, or the reason for a rejection."""
        match answer:
            case ["new", created_at, rank, *taken]:
                usage = QuotaUsage.parse(taken[0]) if taken else None
                return NewJob(float(created_at), rank, usage)
            case [("again" | "old") as outcome, job]:
                return ExistingJob(
                    serialization.from_hash(serialization.parse(job)), outcome == "again"
                )
            case ["quota", quota, taken, *oldest]:
                return OverQuota(quota, QuotaUsage.parse(taken), *(oldest or [None]))
            case [("full" | "conflict" | "refused") as reason]:
                refusal: Refusal = reason
                return refusal
        raise ValueError(f"put.lua answered {answer!r}")


@dataclass(frozen=True)
class AcceptedJob:
    """Job that a request resulted in, with its rank and quota usage at that time."""

    job: Job
    is_new: bool
    rank: int | None = None
    """Number of its tenant's jobs that go before it; None: the job existed before."""
    usage: QuotaUsage | None = None
    """Quota usage of its tenant; None: the tenant has no quotas, or the job existed before."""


class Producer(QueueClient):
    """Part of a `Queue` with which front ends submit jobs."""

    async def withdraw(self, job_id: str) -> None:
        """Cancel a `Deposit`: the job will not be put, and its files are deleted."""
        await self._redis.zrem(keys.DEPOSITS, job_id)

    async def put(self, job: Job, **more: Any) -> tuple[Job, bool]:
        """Call `accept`; return the stored job, and whether it is new."""
        accepted = await self.accept(job, **more)
        return accepted.job, accepted.is_new

    async def accept(
        self,
        job: Job,
        *,
        idempotency_key: str | None = None,
        digest: str = "",
        limits: TenantSettings = NO_LIMITS,
        input_bytes: int = 0,
        refusal: Exception | None = None,
    ) -> AcceptedJob:
        """Store and queue a job, or return the existing one of its idempotency key.

        Needs one round trip.

        Args:
            idempotency_key: the client's key. It is valid per tenant for `idempotency_s`, while the
                job is kept.
            digest: digest of the request's body; the same key with another digest is a conflict.
            limits: settings of the job's tenant.
            input_bytes: bytes of the job's stored inputs. They count against the quota while the
                job is kept.
            refusal: error raised for a new job; a job that was accepted before is returned
                nevertheless.

        Raises:
            QueueFull, QuotaExceeded, IdempotencyConflict: the job was rejected; or the `refusal`.
            Unconfirmed: replicas may lack the job. With an `idempotency_key` it stays in the queue,
                so that a retry finds it. Without one it is deleted, if the server can be reached.
        """
        put = self._put_of(
            job,
            limits,
            _idempotency(job.tenant, idempotency_key),
            digest,
            input_bytes,
            refusal is not None,
        )
        try:
            answer = await self.run_confirmed(put)
        except Unconfirmed:
            if idempotency_key is None:
                with suppress(RedisError, OSError):
                    await self.run(Delete(new_call(), job.id, ANSWER_MS))
            raise
        if refusal and answer == "refused":
            raise refusal
        accepted = _accepted(job, answer)
        if accepted.is_new and job.reuses:
            ended_at = accepted.job.created_at
            done = {"state": JobState.SUCCEEDED, "finished_at": ended_at}
            accepted = replace(accepted, job=accepted.job.model_copy(update=done))
            self.job_metrics.ended(JobEnd.of(accepted.job, JobState.SUCCEEDED, ended_at))
        return accepted

    def _put_of(
        self,
        job: Job,
        limits: TenantSettings,
        idempotency: str | None,
        digest: str,
        input_bytes: int,
        is_refused: bool,
    ) -> Put:
        fields = serialization.to_hash(job) | _served_as(job)
        return Put(
            id=job.id,
            model=job.model,
            tenant=job.tenant,
            priority=job.priority,
            priority_s=self._settings.priority_s,
            deadline_at=job.deadline_at,
            run_s=job.run_s,
            max_queued=self._settings.max_queued,
            tenant_max_queued=limits.max_queued,
            device_seconds_per_hour=limits.device_seconds_per_hour,
            stored_bytes=limits.stored_bytes,
            cost=job.cost,
            input_bytes=input_bytes,
            kept=sum(draft.step for draft in job.snapshots) or None,
            draft_bytes=sum(draft.bytes for draft in job.snapshots),
            made=DeliveredOutputs.of(job.request, job.outputs) if job.reuses else None,
            retention_s=self._settings.retention_s,
            idempotency=idempotency,
            idempotency_ms=round(self._settings.idempotency_s * 1000),
            digest=digest,
            refused=is_refused,
            webhook="webhook" in job.request,
            fields=[text for pair in fields.items() for text in pair],
        )


def _accepted(job: Job, answer: NewJob | ExistingJob | OverQuota | Refusal) -> AcceptedJob:
    """Convert Redis's answer to a `Put`: an accepted job, or an error.

    Raises: QueueFull, QuotaExceeded, IdempotencyConflict: the job was rejected.
    """
    match answer:
        case NewJob(created_at, rank, usage):
            return AcceptedJob(job.model_copy(update={"created_at": created_at}), True, rank, usage)
        case ExistingJob(earlier, is_new):
            return AcceptedJob(earlier, is_new)
        case OverQuota(quota, standing, oldest):
            raise QuotaExceeded(quota, standing, oldest)
        case "full":
            raise QueueFull(job.model)
        case _:
            raise IdempotencyConflict


def _served_as(job: Job) -> dict[str, str]:
    """Return the job field with the request's model name, if another model's workers serve it."""
    name = job.request.get("model", job.model)
    return {} if name == job.model else {"served_as": name}


def _idempotency(tenant: str, key: str | None) -> str | None:
    return key and f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"
