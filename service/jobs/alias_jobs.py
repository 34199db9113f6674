"""Newest jobs of aliases, and pairs of a job and its shadow: what front ends watch versions by."""

from __future__ import annotations

import json
from typing import Any, cast

from redis.asyncio import Redis

from service.jobs.model.job import Job, JobState
from service.jobs.model.version_health import Sample
from service.jobs.redis import keys

MOST = 2000
"""Jobs of an alias that are kept, the newest."""
FIELDS = ("state", "created_at", "finished_at", "error", "served_by", "model")


class AliasJobs:
    """Jobs of aliases in Redis. Times are Redis's."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def note(self, alias: str, job: Job, window_s: float) -> None:
        """Keep a job that an alias was asked for, while it is among the newest."""
        name = keys.alias_jobs(alias)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(name, {job.id: job.created_at})
            pipe.zremrangebyrank(name, 0, -MOST - 1)
            pipe.pexpire(name, round(window_s * 1000))
            await pipe.execute()

    async def samples(self, alias: str, window_s: float, since: float) -> list[Sample]:
        """Return the newest jobs of an alias, those accepted in the window and since then."""
        now = await self.now()
        name, begins = keys.alias_jobs(alias), max(now - window_s, since)
        ids = cast(list[str], await self._redis.zrangebyscore(name, begins, "+inf"))
        async with self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(keys.job(job_id), *FIELDS)
            rows = await pipe.execute()
        return [_sample(row, now) for row in rows if row[0] not in (None, JobState.CANCELED)]

    async def is_first(self, alias: str, every_s: float) -> bool:
        """Return whether the caller may judge an alias: one may in that time."""
        name = keys.alias_watch(alias)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))

    async def now(self) -> float:
        """Return the time by Redis's clock: seconds since the epoch."""
        seconds, micros = await self._redis.time()
        return seconds + micros / 1e6

    # a job, and another model that draws the same
    async def pair(self, job_id: str, shadow_id: str) -> None:
        """Keep a pair until it is taken."""
        await self._redis.zadd(keys.SHADOWS, {f"{job_id} {shadow_id}": await self.now()})

    async def pairs(self, limit: int) -> list[tuple[str, str, float]]:
        """Return the oldest pairs, each with its age in seconds."""
        oldest = self._redis.zrange(keys.SHADOWS, 0, limit - 1, withscores=True)
        found, now = cast(list[tuple[str, float]], await oldest), await self.now()
        split = ((*pair.partition(" "), at) for pair, at in found)
        return [(job_id, shadow_id, now - at) for job_id, _, shadow_id, at in split]

    async def take(self, job_id: str, shadow_id: str) -> bool:
        """Return whether the caller is the one that takes the pair away."""
        return bool(await self._redis.zrem(keys.SHADOWS, f"{job_id} {shadow_id}"))


def _sample(row: list[Any], now: float) -> Sample:
    state, created, finished, error, served_by, model = row
    return Sample(
        version=served_by or model,
        took_s=float(finished or now) - float(created),
        has_ended=finished is not None,
        failure=json.loads(error)["code"] if state == JobState.FAILED and error else None,
    )
