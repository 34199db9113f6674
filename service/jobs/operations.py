"""Operators' side of the queue: jobs of all tenants, pauses, sleep, and the state of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict

from service.jobs import backup
from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import Job, JobState
from service.jobs.redis import keys
from service.jobs.registered_models import pool_facts
from service.jobs.scheduling.cost_model import PoolFacts
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.script import Script
from service.jobs.stored_jobs import Get, JobList

Kind = Literal["model", "pool"]

SCAN_LIMIT = 1000
"""Maximum number of jobs scanned for one page of all tenants' jobs."""
CHUNK = 200
"""Number of jobs read per pipeline."""
FIELDS = ("state", "tenant", "model", "served_as", "served_by")
RECENT = 500
"""Number of recently ended jobs that are searched for failures."""


class Pause(BaseModel):
    """Pause of a pool, worker or model: no jobs are claimed. `at` is seconds since the epoch."""

    model_config = ConfigDict(frozen=True)

    by: str
    at: float
    reason: str = ""
    drains: bool = False
    """True if running jobs are returned to the queue for other workers, too."""


class Sleep(BaseModel):
    """Operator's request that a pool or worker frees its devices while idle. `at`: see `Pause`."""

    model_config = ConfigDict(frozen=True)

    by: str
    at: float
    reason: str = ""


@dataclass(frozen=True)
class TenantBacklog:
    """Backlog of one tenant for one model: queued jobs and their predicted cost."""

    model: str
    tenant: str
    jobs: int
    device_seconds: float
    """Predicted device-seconds of these jobs; 0 if unknown."""


@dataclass(frozen=True)
class WorkerStatus:
    """Registered worker whose heartbeat is fresh."""

    name: str
    model: str
    is_ready: bool
    facts: PoolFacts | None
    """Description that the worker has announced of itself; None: none yet."""

    @property
    def pool(self) -> str:
        """Name of the worker's pool in the settings."""
        return pool_of_worker(self.name)


@dataclass(frozen=True)
class AllJobsFilter:
    """Filter over the jobs of all tenants; None matches any value."""

    state: JobState | None = None
    tenant: str | None = None
    model: str | None = None
    served_by: str | None = None
    """Model that serves the job; for an alias, the version drawn for the job."""

    def fits(self, state: str | None, *fields: str | None) -> bool:
        """Return whether a job with this state, tenant, model and `served_by` matches."""
        filters = (self.state, self.tenant, self.model, self.served_by)
        pairs = zip(filters, (state, *fields), strict=True)
        return state is not None and all(expected in (None, value) for expected, value in pairs)


def pool_of_worker(name: str) -> str:
    """Return the name of the pool in the settings that a worker belongs to."""
    return name.rpartition("-")[0] or name


@dataclass(frozen=True)
class TakeBack(Script[JobState | None]):
    """Script call that returns a running job to the queue."""

    id: str
    call: str
    answer_ms: int

    @staticmethod
    def parse(answer: str | None) -> JobState | None:
        """Return the job's state before the call, or None if there is no such job."""
        return None if answer is None else JobState(answer)


class Operations(QueueClient):
    """Part of a `Queue` for operators, and for workers that check whether they are paused."""

    async def pause(self, kind: Kind, name: str, pause: Pause) -> None:
        """Stop a model's workers, a pool or one worker from claiming jobs until `resume`."""
        await self._redis.hset(keys.PAUSES, f"{kind}:{name}", pause.model_dump_json())

    async def resume(self, kind: Kind, name: str) -> bool:
        """End a pause and wake waiting claims; return whether there was a pause."""
        was_paused = bool(await self._redis.hdel(keys.PAUSES, f"{kind}:{name}"))
        for model in await self._redis.hkeys(keys.MODELS):
            await self._redis.publish(keys.QUEUED, model)
        return was_paused

    async def backup_age_s(self) -> float | None:
        """Return the seconds since the last backup; None: none was recorded."""
        return await backup.age_s(self._redis)

    async def pauses(self) -> dict[tuple[Kind, str], Pause]:
        """Return all pauses of models, pools and workers by kind and name."""
        texts = cast(dict[str, str], await self._redis.hgetall(keys.PAUSES))
        return {_of_field(field): Pause.model_validate_json(text) for field, text in texts.items()}

    async def pause_of(self, worker: str, model: str) -> Pause | None:
        """Return the pause that applies to a worker; one that drains takes precedence."""
        fields = (f"model:{model}", f"pool:{worker}", f"pool:{pool_of_worker(worker)}")
        pauses = [
            Pause.model_validate_json(text)
            for text in await self._redis.hmget(keys.PAUSES, fields)
            if text is not None
        ]
        return max(pauses, key=lambda pause: pause.drains, default=None)

    async def put_to_sleep(self, name: str, sleep: Sleep) -> None:
        """Request that a pool, or one of its workers, sleeps as soon as it is idle."""
        await self._redis.hset(keys.SLEEPS, name, sleep.model_dump_json())

    async def wake(self, name: str) -> bool:
        """Withdraw a sleep request; return whether there was one."""
        return bool(await self._redis.hdel(keys.SLEEPS, name))

    async def sleeps(self) -> dict[str, Sleep]:
        """Return the active sleep requests by pool or worker."""
        texts = cast(dict[str, str], await self._redis.hgetall(keys.SLEEPS))
        return {name: Sleep.model_validate_json(text) for name, text in texts.items()}

    async def sleep_of(self, worker: str) -> Sleep | None:
        """Return the newest sleep request that applies to a worker."""
        texts = await self._redis.hmget(keys.SLEEPS, (worker, pool_of_worker(worker)))
        sleeps = [Sleep.model_validate_json(text) for text in texts if text is not None]
        return max(sleeps, key=lambda sleep: sleep.at, default=None)

    async def oldest_s(self, model: str) -> float | None:
        """Return the seconds since a model's oldest queued job was queued; None: none is queued."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(keys.waiting(model), 0, 0, withscores=True)
            pipe.time()
            oldest, (seconds, microseconds) = await pipe.execute()
        now = seconds + microseconds / 1e6
        return max(0.0, now - oldest[0][1]) if oldest else None

    async def take_back(self, job_id: str) -> JobState | None:
        """Return a running job to the queue without counting the attempt.

        Returns: the job's state before the call; None: there is no such job.
        """
        return await self.run(TakeBack(job_id, new_call(), ANSWER_MS))

    async def any_jobs(self, only: AllJobsFilter, limit: int, after: str | None = None) -> JobList:
        """Return a page of all tenants' jobs, newest first.

        Scans at most `SCAN_LIMIT` jobs, so a page may have fewer than `limit` jobs, even none,
        although more follow.

        Args:
            after: `next` of the page before.

        Raises: UnknownCursor: there is no job `after`.
        """
        start = 0
        if after is not None:
            rank = cast(int | None, await self._redis.zrevrank(keys.JOBS, after))
            if rank is None:
                raise UnknownCursor(after)
            start = rank + 1
        ids = cast(list[str], await self._redis.zrevrange(keys.JOBS, start, start + SCAN_LIMIT))
        looked_at, more = ids[:SCAN_LIMIT], len(ids) > SCAN_LIMIT
        chosen = []
        for job_id, fields in zip(looked_at, await self._fields(looked_at), strict=True):
            if only.fits(*fields):
                chosen.append(job_id)
            if len(chosen) == limit and job_id != ids[-1]:
                more, looked_at = True, [job_id]
                break
        jobs = await self._existing_jobs(chosen)
        return JobList(jobs, next=looked_at[-1] if more and looked_at else None)

    async def running(self) -> list[Job]:
        """Return all running jobs, the longest running first."""
        jobs = await self._existing_jobs(
            cast(list[str], await self._redis.zrange(keys.LEASES, 0, -1))
        )
        running = (job for job in jobs if job.state is JobState.RUNNING)
        return sorted(running, key=lambda job: job.started_at or job.created_at)

    async def failures(self, limit: int) -> list[Job]:
        """Return the latest failed jobs among the `RECENT` that ended last, newest first."""
        ids = cast(list[str], await self._redis.zrevrange(keys.ENDED, 0, RECENT - 1))
        states = await self._fields(ids)
        failed = [
            job_id for job_id, (state, *_) in zip(ids, states, strict=True) if state == "failed"
        ]
        return await self._existing_jobs(failed[:limit])

    async def workers(self) -> list[WorkerStatus]:
        """Return the workers of all models whose heartbeat is fresh."""
        seconds, microseconds = await self._redis.time()
        workers = []
        for model in cast(list[str], await self._redis.hkeys(keys.MODELS)):
            states = cast(dict[str, str], await self._redis.hgetall(keys.pools(model)))
            layouts = cast(dict[str, str], await self._redis.hgetall(keys.layouts(model)))
            for name, text in states.items():
                state, fresh_until = text.split()
                if float(fresh_until) >= seconds + microseconds / 1e6:
                    facts = pool_facts(layouts[name]) if name in layouts else None
                    workers.append(WorkerStatus(name, model, state == "ready", facts))
        return workers

    async def backlog(self, models: Iterable[str]) -> list[TenantBacklog]:
        """Return the backlog by model and tenant, largest predicted device-seconds first."""
        backlog = [waiting for model in models for waiting in await self._waiting_for(model)]
        return sorted(
            backlog, key=lambda waiting: (-waiting.device_seconds, waiting.model, waiting.tenant)
        )

    async def _waiting_for(self, model: str) -> list[TenantBacklog]:
        tenants = cast(list[str], await self._redis.zrange(keys.tenants(model), 0, -1))
        if not tenants:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.zcard(keys.queue(model, tenant))
            pipe.hmget(keys.backlog(model), tenants)
            *counts, backlog = await pipe.execute()
        rows = zip(tenants, counts, backlog, strict=True)
        return [TenantBacklog(model, name, n, float(cost or 0)) for name, n, cost in rows if n]

    async def _fields(self, ids: Sequence[str]) -> list[list[str | None]]:
        """Return state, tenant, model (as the request names it) and serving model of each job."""
        rows: list[list[str | None]] = []
        for start in range(0, len(ids), CHUNK):
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids[start : start + CHUNK]:
                    pipe.hmget(keys.job(job_id), *FIELDS)
                for state, tenant, model, served_as, served_by in await pipe.execute():
                    name = served_as or model
                    rows.append([state, tenant, name, served_by or name])
        return rows

    async def _existing_jobs(self, ids: Iterable[str]) -> list[Job]:
        """Return the jobs with these ids that exist."""
        jobs = await asyncio.gather(*(self.run(Get(job_id)) for job_id in ids))
        return [job for job in jobs if job is not None]


def _of_field(field: str) -> tuple[Kind, str]:
    kind, _, name = field.partition(":")
    return cast(Kind, kind), name
