"""The front ends' side of the queue: jobs come, are asked for, and are stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from models.spec import ModelSpec
from service.jobs import events, journey, keys, wire
from service.jobs.calls import ANSWER_MS, Calls, new_call
from service.jobs.costs import MAX_COSTS, CostKey, CostRow, CostTable, PoolFacts
from service.jobs.errors import IdempotencyConflict, QueueFull, QuotaExceeded, UnknownCursor
from service.jobs.events import Event
from service.jobs.job import DEFAULT_TENANT, Job, JobState
from service.jobs.look import Look
from service.jobs.standing import Standing
from service.jobs.tally import End
from service.settings import TenantSettings

LOOKED_AT = 256
"""Running jobs, and urgent ones, of one look at a queue; of more the first ones."""


@dataclass(frozen=True)
class ModelStatus:
    spec: ModelSpec
    pools: tuple[str, ...]
    """Names of the pools that serve it now (their heartbeat is fresh)."""
    ready: bool
    """At least one of them has finished its warm-up."""


@dataclass(frozen=True)
class Depth:
    """Of one model's queue."""

    queued: int
    running: int
    oldest_s: float
    """Since the queued job that has waited longest came, or came back; 0: none waits."""
    backlog_s: float
    """Device-seconds, as predicted: of what is queued, and of what running jobs have left."""


NO_LIMITS = TenantSettings()
Jobs = list[Job]


class Intake(Calls):
    """Fulfils what front ends ask of a `Queue`."""

    async def deposit(self, job_id: str) -> None:
        """Files of this job are about to be stored: if it is never put, `reap` hands them out."""
        await self._run("deposit", id=job_id)

    async def withdraw(self, job_id: str) -> None:
        """The job is not put, and its files are gone."""
        await self._redis.zrem(keys.DEPOSITS, job_id)

    async def put(
        self,
        job: Job,
        *,
        idempotency_key: str | None = None,
        digest: str = "",
        limits: TenantSettings = NO_LIMITS,
        input_bytes: int = 0,
        refusal: Exception | None = None,
    ) -> tuple[Job, bool]:
        """The stored job, and whether it is new.

        Args:
            idempotency_key: the client's; of one tenant, for `idempotency_s` while the job is kept.
            digest: of the request's body; the same key with another one is a conflict.
            limits: of the job's tenant.
            input_bytes: what the store has of it already; it counts while the job is kept.
            refusal: why a new job is not to be taken; what was accepted before is given even so.

        Raises: QueueFull, QuotaExceeded, IdempotencyConflict; the refusal.
        """
        fields = wire.to_hash(job)
        answer, *stored = await self._run(
            "put",
            *(text for pair in fields.items() for text in pair),
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
            input_bytes=input_bytes,
            retention_s=self._settings.retention_s,
            cost=job.cost,
            idempotency=_idempotency(job.tenant, idempotency_key),
            idempotency_ms=round(self._settings.idempotency_s * 1000),
            digest=digest,
            refused=refusal is not None,
            webhook="webhook" in job.request or None,
        )
        if refusal and answer == "refused":
            raise refusal
        if answer == "full":
            raise QueueFull(job.model)
        if answer == "quota":
            quota, standing, *oldest = stored
            raise QuotaExceeded(quota, Standing.parse(standing), *oldest)
        if answer == "conflict":
            raise IdempotencyConflict
        return wire.from_hash(wire.parse(stored[0])), answer == "new"

    async def standing(self, tenant: str, limits: TenantSettings) -> Standing:
        answer = await self._run(
            "standing",
            tenant=tenant,
            device_seconds_per_hour=limits.device_seconds_per_hour,
            retention_s=self._settings.retention_s,
        )
        return Standing.parse(answer)

    async def get(self, job_id: str) -> Job | None:
        """Raises: WireError: a newer Atelier wrote it."""
        return _job(await self._run("get", id=job_id))

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        limit: int,
        after: str | None = None,
        state: JobState | None = None,
    ) -> Jobs:
        """A page of a tenant's jobs, newest first; `after` is the last id of the page before.

        Raises: UnknownCursor: the tenant has no job `after`.
        """
        states = [state] if state else list(JobState)
        page = await self._run("list", tenant=tenant, states=states, limit=limit, after=after)
        if page is None:
            raise UnknownCursor(str(after))
        return [wire.from_hash(wire.parse(text)) for text in page]

    async def outlook(self, model: str) -> Look:
        """One look at what waits and what runs, to estimate waits from."""
        return Look.parse(await self._run("outlook", model=model, looked_at=LOOKED_AT))

    async def rank(self, job: Job) -> int | None:
        """Jobs of its tenant that go before it, by their places; None unless queued."""
        return cast(int | None, await self._redis.zrank(keys.queue(job.model, job.tenant), job.id))

    async def cancel(self, job_id: str) -> Job | None:
        """Idempotent: an ended job is returned as it is."""
        call = new_call()
        return self._stopped(call, await self._run("cancel", id=job_id, call=call))

    async def delete(self, job_id: str) -> Job | None:
        """Cancels it first if it has not ended. Its files leave at once if the caller deletes them,
        and with the next `reap` otherwise."""
        call = new_call()
        answer = await self._run("delete", id=job_id, call=call, answer_ms=ANSWER_MS)
        return self._stopped(call, answer)

    def _stopped(self, call: str, answer: str | None) -> Job | None:
        """The job, counted if it was that call which ended it."""
        if answer is None:
            return None
        fields = wire.parse(answer)
        job = wire.from_hash(fields)
        if fields.get("ended_by") == call:
            self.tally.ended(End.of(job, job.state, float(fields["finished_at"])))
            journey.stopped(job, float(fields.get("queued_at", job.created_at)))
        return job

    def events(self, job_id: str, after: str = "0") -> AsyncGenerator[Event, None]:
        """Events after that id as they happen; ends after an end state's event, and on `close`."""
        return events.follow(self._redis, self._subscriber, job_id, after)

    async def models(self) -> dict[str, ModelStatus]:
        found = [_status(*row) for row in await self._run("models")]
        return {status.spec.name: status for status in sorted(found, key=lambda s: s.spec.name)}

    async def depths(self) -> dict[str, Depth]:
        """How much is to be done, by registered model."""
        rows = await self._run("depths", looked_at=LOOKED_AT)
        return {
            model: Depth(queued, running, float(oldest_s), float(backlog_s))
            for model, queued, running, oldest_s, backlog_s in rows
        }

    async def costs(self, model: str) -> CostTable:
        """What pools have measured."""
        rows, pools, now = await self._run("costs", model=model)
        return CostTable(
            {CostKey.parse(name): _cost_row(text) for name, text in _pairs(rows)},
            {name: _pool_facts(text) for name, text in _pairs(pools)},
            float(now),
        )

    async def tries(self, model: str, bucket: str, every_s: float) -> bool:
        """Whether the caller may try what that bucket costs: one may in that time."""
        name = keys.tried(model, bucket)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))


def _idempotency(tenant: str, key: str | None) -> str | None:
    return key and f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


@lru_cache(maxsize=MAX_COSTS)
def _cost_row(text: str) -> CostRow:
    return CostRow.model_validate_json(text)


@lru_cache(maxsize=MAX_COSTS)
def _pool_facts(text: str) -> PoolFacts:
    told = json.loads(text)  # by a script, which has no empty lists
    return PoolFacts(told["layout"], told["slots"], tuple(told.get("warm") or ()))


def _job(text: str | None) -> Job | None:
    return wire.from_hash(wire.parse(text)) if text else None


def _status(spec: str, *pools: str) -> ModelStatus:
    return ModelStatus(_spec(spec), tuple(sorted(pools[::2])), "ready" in pools[1::2])


@lru_cache(maxsize=256)
def _spec(text: str) -> ModelSpec:
    return ModelSpec.model_validate_json(text)
