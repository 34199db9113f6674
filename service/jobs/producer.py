"""Front ends' side of the queue: accepting, reading, listing, canceling and deleting jobs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.jobs import events, job_spans
from service.jobs.events import Event
from service.jobs.model import serialization
from service.jobs.model.errors import IdempotencyConflict, QueueFull, QuotaExceeded, UnknownCursor
from service.jobs.model.job import DEFAULT_TENANT, Job, JobState
from service.jobs.model.job_filter import JobFilter
from service.jobs.model.ledger import DeliveredOutputs
from service.jobs.model.metrics import JobEnd
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import CostTable
from service.jobs.scheduling.queue_snapshot import QueueSnapshot
from service.jobs.scripts import producer
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.producer import (
    Depth,
    ExistingJob,
    JobList,
    ModelStatus,
    NewJob,
    OverQuota,
)
from service.jobs.scripts.runner import Unconfirmed
from service.settings.tenants import TenantSettings

SCAN_LIMIT = 256
"""Maximum number of running jobs, and of jobs with deadlines, read in one queue snapshot."""


LIST_SCAN_LIMIT = 1000
"""Maximum number of a tenant's jobs scanned for a page filtered by model or metadata. The scan
takes Redis a few milliseconds."""

NO_LIMITS = TenantSettings()
ALL = JobFilter()


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
    """Part of a `Queue` that front ends use for jobs."""

    async def deposit(self, job_id: str) -> None:
        """Announce that files of a job are about to be stored.

        If the job is never put, `reap` returns the files for deletion.
        """
        await self._run(producer.Deposit(job_id))

    async def withdraw(self, job_id: str) -> None:
        """Cancel a `deposit`: the job is not put, and its files are deleted."""
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
            answer = await self._accept(put)
        except Unconfirmed:
            if idempotency_key is None:
                with suppress(RedisError, OSError):
                    await self._run(producer.Delete(new_call(), job.id, ANSWER_MS))
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
    ) -> producer.Put:
        fields = serialization.to_hash(job) | _served_as(job)
        return producer.Put(
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

    async def get(self, job_id: str) -> Job | None:
        """Return a job, or None if there is no such job.

        Raises: WireError: a newer Atelier wrote it.
        """
        return await self._run(producer.Get(job_id))

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        limit: int,
        after: str | None = None,
        only: JobFilter = ALL,
    ) -> JobList:
        """Return a page of a tenant's jobs, newest first.

        With a filter by model or metadata, `LIST_SCAN_LIMIT` jobs are scanned. A page may then have
        fewer than `limit` jobs, even none, although more follow.

        Args:
            after: `next` of the page before.

        Raises: UnknownCursor: the tenant has no job `after`.
        """
        page = await self._run(
            producer.List(
                tenant=tenant,
                states=[only.state] if only.state else list(JobState),
                after=after,
                limit=limit,
                looked_at=LIST_SCAN_LIMIT,
                model=only.model,
                metadata_key=only.metadata_key,
                metadata_value=only.metadata_value,
                created_from=only.created_from_us,
                created_before=only.created_before_us,
            )
        )
        if page is None:
            raise UnknownCursor(str(after))
        return page

    async def queue_snapshot(self, model: str) -> QueueSnapshot:
        """Read a model's queued and running jobs, for estimates of waits."""
        return await self._run(producer.ReadQueue(model, SCAN_LIMIT))

    async def rank(self, job: Job) -> int | None:
        """Return how many of its tenant's jobs go before a job; None unless it is queued."""
        return cast(int | None, await self._redis.zrank(keys.queue(job.model, job.tenant), job.id))

    async def waiting(self, model: str) -> Sequence[str]:
        """Return ids of a model's queued jobs, the longest waiting first."""
        return cast(Sequence[str], await self._redis.zrange(keys.waiting(model), 0, -1))

    async def switch_model(self, job: Job, spec: ModelSpec) -> bool:
        """Move a queued job to another model's queue, to start from its first step.

        Returns False if the job no longer waits for its former model.
        """
        to, print_ = spec.queue, spec.fingerprint
        return await self._run(producer.SwitchModel(job.id, job.model, to, spec.name, print_))

    async def cancel(self, job_id: str) -> Job | None:
        """Cancel a job; return it, or None if there is no such job. Ended jobs stay unchanged."""
        call = new_call()
        return self._stopped(call, await self._run(producer.Cancel(call, job_id)))

    async def delete(self, job_id: str) -> Job | None:
        """Delete a job; cancel it first if it has not ended.

        The caller may delete its files at once; otherwise the next `reap` returns them for
        deletion.
        """
        call = new_call()
        return self._stopped(call, await self._run(producer.Delete(call, job_id, ANSWER_MS)))

    def _stopped(self, call: str, fields: producer.Hash | None) -> Job | None:
        """Convert a stopped job's hash; count the end if this call caused it."""
        if fields is None:
            return None
        job = serialization.from_hash(fields)
        if fields.get("ended_by") == call:
            self.job_metrics.ended(JobEnd.of(job, job.state, float(fields["finished_at"])))
            job_spans.report_stop(job, float(fields.get("queued_at", job.created_at)))
        return job

    async def ended(self, job_id: str) -> Job | None:
        """Wait for a job's end and return the job; None: it was deleted.

        On `close` the job is returned in its current state.

        Raises: WireError: a newer Atelier wrote it.
        """
        with self._subscriber.waking(keys.WAKE, job_id) as wake:
            while True:
                wake.clear()
                job = await self.get(job_id)
                if job is None or job.state.ended or self._subscriber.closed:
                    return job
                await wake.wait()

    def events(self, job_id: str, after: str = "0") -> AsyncGenerator[Event, None]:
        """Yield events after an id as they happen, until the event of an end state or `close`."""
        return events.follow(self._redis, self._subscriber, job_id, after)

    async def newest_preview(self, job_id: str) -> str | None:
        """Return a job's newest preview as a data URI, or None if it has none now."""
        return await events.newest_preview(self._redis, job_id)

    async def original_job(self, job: Job) -> Job:
        """Return the job that generated a job's files: the oldest known in its chain of copies."""
        while job.copied_from and (earlier := await self.get(job.copied_from)):
            job = earlier
        return job

    async def models(self) -> dict[str, ModelStatus]:
        """Return the status of every registered model by name."""
        return await self._run(producer.ReadModels())

    async def depths(self) -> dict[str, Depth]:
        """Return the queue's depth by registered model."""
        return await self._run(producer.Depths(SCAN_LIMIT))

    async def costs(self, model: str) -> CostTable:
        """Read the costs that a model's workers have measured."""
        return await self._run(producer.ReadCosts(model))

    async def acquire_cost_trial(self, model: str, bucket: str, every_s: float) -> bool:
        """Acquire the right to re-measure a cost, which one caller gets every `every_s` seconds."""
        name = keys.cost_trial(model, bucket)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))


def _accepted(job: Job, answer: NewJob | ExistingJob | OverQuota | producer.Refusal) -> AcceptedJob:
    """Convert the answer to a `Put`.

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
    """Return the field with the request's model name, if another model's workers serve it."""
    name = job.request.get("model", job.model)
    return {} if name == job.model else {"served_as": name}


def _idempotency(tenant: str, key: str | None) -> str | None:
    return key and f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"
