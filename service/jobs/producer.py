"""The front ends' side of the queue: jobs come, are asked for, and are stopped."""

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
from service.jobs.model.ledger import Delivered
from service.jobs.model.metrics import End
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import CostTable
from service.jobs.scheduling.queue_snapshot import QueueSnapshot
from service.jobs.scripts import producer
from service.jobs.scripts.client import ANSWER_MS, Calls, new_call
from service.jobs.scripts.producer import Depth, Found, JobList, ModelStatus, OverQuota, Queued
from service.jobs.scripts.runner import Unconfirmed
from service.settings.tenants import TenantSettings

LOOKED_AT = 256
"""Running jobs, and urgent ones, of one look at a queue; of more the first ones."""


LISTED = 1000
"""Jobs of a tenant that one page by model or metadata looks at: a few milliseconds of Redis."""

NO_LIMITS = TenantSettings()
ALL = JobFilter()


@dataclass(frozen=True)
class Accepted:
    """Job that a request leads to, with what was true when it was put."""

    job: Job
    is_new: bool
    rank: int | None = None
    """Jobs of its tenant that go before it; None: it was there before."""
    usage: QuotaUsage | None = None
    """Quotas that its tenant has used; None: it has none, or the job was there before."""


class Producer(Calls):
    """Part of a `Queue` that front ends use."""

    async def deposit(self, job_id: str) -> None:
        """Files of this job are about to be stored: if it is never put, `reap` hands them out."""
        await self._run(producer.Deposit(job_id))

    async def withdraw(self, job_id: str) -> None:
        """The job is not put, and its files are gone."""
        await self._redis.zrem(keys.DEPOSITS, job_id)

    async def put(self, job: Job, **more: Any) -> tuple[Job, bool]:
        """Return the stored job, and whether it is new. Arguments and errors are `accept`'s."""
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
    ) -> Accepted:
        """Store a job and queue it, or find the one that its key stands for: one round trip.

        Args:
            idempotency_key: the client's; of one tenant, for `idempotency_s` while the job is kept.
            digest: of the request's body; the same key with another one is a conflict.
            limits: of the job's tenant.
            input_bytes: what the store has of it already; it counts while the job is kept.
            refusal: why a new job is not to be taken; what was accepted before is given even so.

        Raises:
            QueueFull, QuotaExceeded, IdempotencyConflict: it was refused, as by the `refusal`.
            Unconfirmed: replicas may lack it. With an `idempotency_key` it stays in the queue, for
                a repeat to find; without one it is deleted, as far as the server can be reached.
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
            self.tally.ended(End.of(accepted.job, JobState.SUCCEEDED, ended_at))
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
            made=Delivered.of(job.request, job.outputs) if job.reuses else None,
            retention_s=self._settings.retention_s,
            idempotency=idempotency,
            idempotency_ms=round(self._settings.idempotency_s * 1000),
            digest=digest,
            refused=is_refused,
            webhook="webhook" in job.request,
            fields=[text for pair in fields.items() for text in pair],
        )

    async def get(self, job_id: str) -> Job | None:
        """Return a job; None: there is none.

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
        """A page of a tenant's jobs, newest first; `after` is the `next` of the page before.

        By model or metadata it looks at `LISTED` jobs and may have fewer than `limit`, even none,
        where others follow.

        Raises: UnknownCursor: the tenant has no job `after`.
        """
        page = await self._run(
            producer.List(
                tenant=tenant,
                states=[only.state] if only.state else list(JobState),
                after=after,
                limit=limit,
                looked_at=LISTED,
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
        """Read what is queued and what runs, to estimate waits from."""
        return await self._run(producer.ReadQueue(model, LOOKED_AT))

    async def rank(self, job: Job) -> int | None:
        """Jobs of its tenant that go before it, by their places; None unless queued."""
        return cast(int | None, await self._redis.zrank(keys.queue(job.model, job.tenant), job.id))

    async def waiting(self, model: str) -> Sequence[str]:
        """Return ids of all queued jobs, those first that have waited longest."""
        return cast(Sequence[str], await self._redis.zrange(keys.waiting(model), 0, -1))

    async def switch_model(self, job: Job, spec: ModelSpec) -> bool:
        """Let another model serve a queued job, from its first step on.

        False: it does not wait for the former one any more.
        """
        to, print_ = spec.queue, spec.fingerprint
        return await self._run(producer.SwitchModel(job.id, job.model, to, spec.name, print_))

    async def cancel(self, job_id: str) -> Job | None:
        """Idempotent: an ended job is returned as it is."""
        call = new_call()
        return self._stopped(call, await self._run(producer.Cancel(call, job_id)))

    async def delete(self, job_id: str) -> Job | None:
        """Delete a job; cancel it first if it has not ended.

        Its files leave at once if the caller deletes them, and with the next `reap` otherwise.
        """
        call = new_call()
        return self._stopped(call, await self._run(producer.Delete(call, job_id, ANSWER_MS)))

    def _stopped(self, call: str, fields: producer.Hash | None) -> Job | None:
        """The job, counted if it was that call which ended it."""
        if fields is None:
            return None
        job = serialization.from_hash(fields)
        if fields.get("ended_by") == call:
            self.tally.ended(End.of(job, job.state, float(fields["finished_at"])))
            job_spans.stopped(job, float(fields.get("queued_at", job.created_at)))
        return job

    async def ended(self, job_id: str) -> Job | None:
        """Return a job once it has ended, or as it is on `close`; None: it is not there any more.

        Raises: WireError: as `get`.
        """
        with self._subscriber.waking(keys.WAKE, job_id) as wake:
            while True:
                wake.clear()
                job = await self.get(job_id)
                if job is None or job.state.ended or self._subscriber.closed:
                    return job
                await wake.wait()

    def events(self, job_id: str, after: str = "0") -> AsyncGenerator[Event, None]:
        """Events after that id as they happen; ends after an end state's event, and on `close`."""
        return events.follow(self._redis, self._subscriber, job_id, after)

    async def newest_preview(self, job_id: str) -> str | None:
        """Return a job's newest preview, as a data URI; None: there is none yet, or no more."""
        return await events.newest_preview(self._redis, job_id)

    async def drawer(self, job: Job) -> Job:
        """Return the job that drew a job's files; the last one that is known, if it is gone."""
        while job.copied_from and (earlier := await self.get(job.copied_from)):
            job = earlier
        return job

    async def models(self) -> dict[str, ModelStatus]:
        """Return every registered model by name."""
        return await self._run(producer.ReadModels())

    async def depths(self) -> dict[str, Depth]:
        """Read the depth of the queue by registered model."""
        return await self._run(producer.Depths(LOOKED_AT))

    async def costs(self, model: str) -> CostTable:
        """Read what pools have measured."""
        return await self._run(producer.ReadCosts(model))

    async def tries(self, model: str, bucket: str, every_s: float) -> bool:
        """Return whether the caller may try that bucket's cost: one caller may in that time."""
        name = keys.tried(model, bucket)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))


def _accepted(job: Job, answer: Queued | Found | OverQuota | producer.Refusal) -> Accepted:
    """Raises: QueueFull, QuotaExceeded, IdempotencyConflict: it was refused."""
    match answer:
        case Queued(created_at, rank, usage):
            return Accepted(job.model_copy(update={"created_at": created_at}), True, rank, usage)
        case Found(found, is_new):
            return Accepted(found, is_new)
        case OverQuota(quota, standing, oldest):
            raise QuotaExceeded(quota, standing, oldest)
        case "full":
            raise QueueFull(job.model)
        case _:
            raise IdempotencyConflict


def _served_as(job: Job) -> dict[str, str]:
    """Return the name of the model in the request, where workers of another one serve it."""
    name = job.request.get("model", job.model)
    return {} if name == job.model else {"served_as": name}


def _idempotency(tenant: str, key: str | None) -> str | None:
    return key and f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"
