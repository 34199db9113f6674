"""Operators' side of the queue: what all tenants have, and what holds pools and models back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict

from service.jobs.model.errors import UnknownCursor
from service.jobs.model.job import Job, JobState
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import PoolFacts
from service.jobs.scripts import operations, producer
from service.jobs.scripts.client import ANSWER_MS, Calls, new_call
from service.jobs.scripts.producer import JobList

Kind = Literal["model", "pool"]

LOOKED_AT = 1000
"""Jobs that one page of all tenants' jobs looks at."""
CHUNK = 200
"""Jobs that one command to Redis asks about."""
FIELDS = ("state", "tenant", "model", "served_as", "served_by")
RECENT = 500
"""Ended jobs among which failures are looked for."""


class Pause(BaseModel):
    """Reason for which a pool or a model's pools take no jobs. `at` is seconds since the epoch."""

    model_config = ConfigDict(frozen=True)

    by: str
    at: float
    reason: str = ""
    drains: bool = False
    """True if running jobs are put aside for other pools, too."""


class Sleep(BaseModel):
    """Wish that a pool frees its devices while it has nothing to do. `at`: as of `Pause`."""

    model_config = ConfigDict(frozen=True)

    by: str
    at: float
    reason: str = ""


@dataclass(frozen=True)
class Waiting:
    """Jobs of one tenant that wait for one model."""

    model: str
    tenant: str
    jobs: int
    device_seconds: float
    """Prediction of what they take; 0 where nothing is known."""


@dataclass(frozen=True)
class WorkerStatus:
    """A worker whose heartbeat is fresh."""

    name: str
    model: str
    is_ready: bool
    facts: PoolFacts | None
    """Description that it gives of itself; None: none yet."""

    @property
    def pool(self) -> str:
        """Return the pool of the settings that it belongs to."""
        return of_pool(self.name)


@dataclass(frozen=True)
class AnyJob:
    """Choice of all tenants' jobs; None: any."""

    state: JobState | None = None
    tenant: str | None = None
    model: str | None = None
    served_by: str | None = None
    """Model that serves it: of an alias, the version that was drawn."""

    def fits(self, state: str | None, *fields: str | None) -> bool:
        """Return whether a job with these, in the order of ours, is one of them."""
        wanted = (self.state, self.tenant, self.model, self.served_by)
        each = zip(wanted, (state, *fields), strict=True)
        return state is not None and all(one in (None, there) for one, there in each)


def of_pool(name: str) -> str:
    """Return the name of the settings' pool that a worker of that name belongs to."""
    return name.rpartition("-")[0] or name


class Operations(Calls):
    """Part of a `Queue` that operators use, and pools that ask whether they are held back."""

    async def pause(self, kind: Kind, name: str, pause: Pause) -> None:
        """Let a model's pools, a pool, or one of its workers claim nothing until `resume`."""
        await self._redis.hset(keys.PAUSES, f"{kind}:{name}", pause.model_dump_json())

    async def resume(self, kind: Kind, name: str) -> bool:
        """Return whether it was paused."""
        was = bool(await self._redis.hdel(keys.PAUSES, f"{kind}:{name}"))
        for model in await self._redis.hkeys(keys.MODELS):
            await self._redis.publish(keys.QUEUED, model)
        return was

    async def pauses(self) -> dict[tuple[Kind, str], Pause]:
        """Return what is paused."""
        found = cast(dict[str, str], await self._redis.hgetall(keys.PAUSES))
        return {_of_field(field): Pause.model_validate_json(text) for field, text in found.items()}

    async def pause_of(self, worker: str, model: str) -> Pause | None:
        """Return what holds a worker back; the one that drains it first."""
        fields = (f"model:{model}", f"pool:{worker}", f"pool:{of_pool(worker)}")
        found = [
            Pause.model_validate_json(text)
            for text in await self._redis.hmget(keys.PAUSES, fields)
            if text is not None
        ]
        return max(found, key=lambda pause: pause.drains, default=None)

    async def put_to_sleep(self, name: str, sleep: Sleep) -> None:
        """Let a pool, or one of its workers, sleep as soon as it has nothing to do."""
        await self._redis.hset(keys.SLEEPS, name, sleep.model_dump_json())

    async def wake(self, name: str) -> bool:
        """Wake a pool or worker; return whether it was put to sleep."""
        return bool(await self._redis.hdel(keys.SLEEPS, name))

    async def sleeps(self) -> dict[str, Sleep]:
        """Return which pools and workers were put to sleep, and not woken by an operator."""
        found = cast(dict[str, str], await self._redis.hgetall(keys.SLEEPS))
        return {name: Sleep.model_validate_json(text) for name, text in found.items()}

    async def sleep_of(self, worker: str) -> Sleep | None:
        """Return the newest wish that a worker or its pool sleeps."""
        texts = await self._redis.hmget(keys.SLEEPS, (worker, of_pool(worker)))
        found = [Sleep.model_validate_json(text) for text in texts if text is not None]
        return max(found, key=lambda sleep: sleep.at, default=None)

    async def oldest_s(self, model: str) -> float | None:
        """Return the seconds since the first queued job of a model came; None: there is none."""
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(keys.waiting(model), 0, 0, withscores=True)
            pipe.time()
            found, (seconds, microseconds) = await pipe.execute()
        now = seconds + microseconds / 1e6
        return max(0.0, now - found[0][1]) if found else None

    async def take_back(self, job_id: str) -> JobState | None:
        """Put a running job back into the queue, its attempt not counted.

        Returns: the state that it was in; None: there is no such job.
        """
        return await self._run(operations.TakeBack(job_id, new_call(), ANSWER_MS))

    async def any_jobs(self, only: AnyJob, limit: int, after: str | None = None) -> JobList:
        """A page of all tenants' jobs, newest first; `after` is the `next` of the page before.

        It looks at `LOOKED_AT` jobs and may have fewer than `limit`, even none, where others
        follow.

        Raises: UnknownCursor: there is no job `after`.
        """
        start = 0
        if after is not None:
            rank = cast(int | None, await self._redis.zrevrank(keys.JOBS, after))
            if rank is None:
                raise UnknownCursor(after)
            start = rank + 1
        ids = cast(list[str], await self._redis.zrevrange(keys.JOBS, start, start + LOOKED_AT))
        looked_at, more = ids[:LOOKED_AT], len(ids) > LOOKED_AT
        chosen = []
        for job_id, fields in zip(looked_at, await self._fields(looked_at), strict=True):
            if only.fits(*fields):
                chosen.append(job_id)
            if len(chosen) == limit and job_id != ids[-1]:
                more, looked_at = True, [job_id]
                break
        found = await self._whole(chosen)
        return JobList(found, next=looked_at[-1] if more and looked_at else None)

    async def running(self) -> list[Job]:
        """Return all running jobs, the longest running first."""
        found = await self._whole(cast(list[str], await self._redis.zrange(keys.LEASES, 0, -1)))
        there = (job for job in found if job.state is JobState.RUNNING)
        return sorted(there, key=lambda job: job.started_at or job.created_at)

    async def failures(self, limit: int) -> list[Job]:
        """Return the last jobs that failed, newest first, of the `RECENT` that ended last."""
        ids = cast(list[str], await self._redis.zrevrange(keys.ENDED, 0, RECENT - 1))
        states = await self._fields(ids)
        failed = [one for one, (state, *_) in zip(ids, states, strict=True) if state == "failed"]
        return await self._whole(failed[:limit])

    async def workers(self) -> list[WorkerStatus]:
        """Return the workers of all models."""
        seconds, microseconds = await self._redis.time()
        found = []
        for model in cast(list[str], await self._redis.hkeys(keys.MODELS)):
            states = cast(dict[str, str], await self._redis.hgetall(keys.pools(model)))
            layouts = cast(dict[str, str], await self._redis.hgetall(keys.layouts(model)))
            for name, text in states.items():
                state, fresh_until = text.split()
                if float(fresh_until) >= seconds + microseconds / 1e6:
                    facts = producer.pool_facts(layouts[name]) if name in layouts else None
                    found.append(WorkerStatus(name, model, state == "ready", facts))
        return found

    async def backlog(self, models: Iterable[str]) -> list[Waiting]:
        """Return who waits for these models, and for how much; most device-seconds first."""
        found = [one for model in models for one in await self._waiting_for(model)]
        return sorted(found, key=lambda one: (-one.device_seconds, one.model, one.tenant))

    async def _waiting_for(self, model: str) -> list[Waiting]:
        tenants = cast(list[str], await self._redis.zrange(keys.tenants(model), 0, -1))
        if not tenants:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.zcard(keys.queue(model, tenant))
            pipe.hmget(keys.backlog(model), tenants)
            *counts, backlog = await pipe.execute()
        each = zip(tenants, counts, backlog, strict=True)
        return [Waiting(model, name, n, float(cost or 0)) for name, n, cost in each if n]

    async def _fields(self, ids: Sequence[str]) -> list[list[str | None]]:
        """State, tenant, model and version of each; the model by its name in the request."""
        found: list[list[str | None]] = []
        for start in range(0, len(ids), CHUNK):
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids[start : start + CHUNK]:
                    pipe.hmget(keys.job(job_id), *FIELDS)
                for state, tenant, model, served_as, served_by in await pipe.execute():
                    name = served_as or model
                    found.append([state, tenant, name, served_by or name])
        return found

    async def _whole(self, ids: Iterable[str]) -> list[Job]:
        """Return those that are there."""
        found = await asyncio.gather(*(self._run(producer.Get(job_id)) for job_id in ids))
        return [job for job in found if job is not None]


def _of_field(field: str) -> tuple[Kind, str]:
    kind, _, name = field.partition(":")
    return cast(Kind, kind), name
