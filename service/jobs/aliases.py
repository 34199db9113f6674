"""Aliases stored in Redis: names that stand for several versions of a model, with weights.

Front ends compare an alias's versions by its recent jobs, and by pairs of a job and its shadow.
"""

from __future__ import annotations

import json
from typing import Any, cast

from redis.asyncio import Redis

from service.jobs.model.alias import Alias
from service.jobs.model.job import Job, JobState
from service.jobs.model.version_health import Sample
from service.jobs.records import Records
from service.jobs.redis import keys

MAX_NAME_CHARS = 200
"""Maximum length of a model's name in requests."""


class AliasRecords(Records[Alias]):
    """Records of aliases in Redis. Fields written by a newer Atelier are ignored."""

    def __init__(self, redis: Redis) -> None:
        parse = Alias.model_validate_json
        super().__init__(redis, keys.ALIASES, keys.ALIAS_CHANGES, parse, check_alias)


def check_alias(name: str) -> None:
    """Validate the name of a model alias. Raises: ValueError: requests cannot name it."""
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or "/" in name:
        raise ValueError(
            f"{name!r} can't be an alias: take up to {MAX_NAME_CHARS} printable characters"
            " without a slash"
        )


MAX_JOBS = 2000
"""Maximum number of recent jobs kept per alias."""
FIELDS = ("state", "created_at", "finished_at", "error", "served_by", "model")


class AliasJobs:
    """Redis client for the recent jobs of aliases and for shadow pairs. Times are Redis's."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def note(self, alias: str, job: Job, window_s: float) -> None:
        """Add a job to the recent jobs of its alias, and drop the oldest beyond `MAX_JOBS`."""
        name = keys.alias_jobs(alias)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(name, {job.id: job.created_at})
            pipe.zremrangebyrank(name, 0, -MAX_JOBS - 1)
            pipe.pexpire(name, round(window_s * 1000))
            await pipe.execute()

    async def samples(self, alias: str, window_s: float, since: float) -> list[Sample]:
        """Return an alias's recent jobs that were accepted in the window and after `since`.

        Canceled and deleted jobs are left out.
        """
        now = await self.now()
        name, begins = keys.alias_jobs(alias), max(now - window_s, since)
        ids = cast(list[str], await self._redis.zrangebyscore(name, begins, "+inf"))
        async with self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(keys.job(job_id), *FIELDS)
            rows = await pipe.execute()
        return [_sample(row, now) for row in rows if row[0] not in (None, JobState.CANCELED)]

    async def acquire_check(self, alias: str, every_s: float) -> bool:
        """Acquire the right to judge an alias, which one front end gets every `every_s` seconds."""
        name = keys.alias_watch(alias)
        return bool(await self._redis.set(name, "", nx=True, px=round(every_s * 1000)))

    async def now(self) -> float:
        """Return Redis's time in seconds since the epoch."""
        seconds, micros = await self._redis.time()
        return seconds + micros / 1e6

    # pairs of a job and its shadow: the same request, served by another model
    async def pair(self, job_id: str, shadow_id: str) -> None:
        """Store a pair of a job and its shadow until `take` removes it."""
        await self._redis.zadd(keys.SHADOWS, {f"{job_id} {shadow_id}": await self.now()})

    async def pairs(self, limit: int) -> list[tuple[str, str, float]]:
        """Return the oldest pairs of a job and its shadow, each with its age in seconds."""
        oldest = self._redis.zrange(keys.SHADOWS, 0, limit - 1, withscores=True)
        pairs, now = cast(list[tuple[str, float]], await oldest), await self.now()
        split = ((*pair.partition(" "), at) for pair, at in pairs)
        return [(job_id, shadow_id, now - at) for job_id, _, shadow_id, at in split]

    async def take(self, job_id: str, shadow_id: str) -> bool:
        """Remove a pair of a job and its shadow; return True to the only caller that removed it."""
        return bool(await self._redis.zrem(keys.SHADOWS, f"{job_id} {shadow_id}"))


def _sample(row: list[Any], now: float) -> Sample:
    state, created, finished, error, served_by, model = row
    return Sample(
        version=served_by or model,
        took_s=float(finished or now) - float(created),
        has_ended=finished is not None,
        failure=json.loads(error)["code"] if state == JobState.FAILED and error else None,
    )
