"""Costs and waits as the front end quotes them: from copies of what Redis holds, a moment old."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from redis.exceptions import RedisError

from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import Cost, CostTable
from service.jobs.scheduling.wait_estimator import Place, Rules, WaitEstimator
from service.settings.queue import QueueSettings

T = TypeVar("T")

TABLE_AGE_S = 1.0
OUTLOOK_AGE_S = 0.25
READING_SHARE = 0.02
"""Maximum share of time spent rereading one value: what is slow to read may get older."""

NO_POOL_S = 30.0
"""Retry delay where no ready pool could make room."""


class Copies(Generic[T]):
    """Cache of a value a model, reread after `age_s`; concurrent callers share a read.

    Args:
        grace_s: for how long a copy is given on while it is read anew, so that nobody waits for
            that whose requests come closer together.
    """

    def __init__(
        self, read: Callable[[str], Awaitable[T]], age_s: float, grace_s: float = 0.0
    ) -> None:
        self._read = read
        self._age_s = age_s
        self._grace_s = grace_s
        self._copies: dict[str, tuple[T, float]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._rereading: dict[str, asyncio.Task[None]] = {}

    async def get(self, model: str) -> T:
        """Return the copy of a model's, read anew once it is old."""
        copy, until = self._copies.get(model, (None, 0.0))
        late_s = time.monotonic() - until
        if copy is not None and late_s < self._grace_s:
            if late_s >= 0 and model not in self._rereading:
                self._rereading[model] = asyncio.create_task(self._reread(model))
            return copy
        async with self._locks[model]:
            copy, until = self._copies.get(model, (None, 0.0))
            if copy is None or time.monotonic() >= until:
                copy = await self._anew(model)
        return copy

    def last(self, model: str) -> T | None:
        """Return the last value read, however old."""
        copy, _ = self._copies.get(model, (None, 0.0))
        return copy

    async def forget(self, model: str) -> None:
        """Forget the copy, and let no read that has begun before become one."""
        async with self._locks[model]:
            self._copies.pop(model, None)

    async def _reread(self, model: str) -> None:
        try:
            with suppress(RedisError, OSError):  # whoever finds no copy is told
                async with self._locks[model]:
                    await self._anew(model)
        finally:
            del self._rereading[model]

    async def _anew(self, model: str) -> T:
        started = time.monotonic()
        copy = await self._read(model)
        now = time.monotonic()
        until = now + max(self._age_s, (now - started) / READING_SHARE)
        self._copies[model] = copy, until
        return copy


class CostCache:
    """Predictions of one front end."""

    def __init__(self, queue: Queue, settings: QueueSettings) -> None:
        self._queue = queue
        self._max_queued = settings.max_queued
        self._rules = Rules(settings.priority_advance_s, settings.deadline_credit_s)
        self._tables = Copies[CostTable](queue.costs, TABLE_AGE_S, TABLE_AGE_S)
        self._outlooks = Copies[WaitEstimator](self._look, OUTLOOK_AGE_S, OUTLOOK_AGE_S)

    async def predict(self, job: Job) -> Cost | None:
        """Predict a job's cost on the fastest ready pools; None: nothing is known."""
        return (await self._tables.get(job.model)).predict_passes(job.passes(), job.images)

    async def compile_s(self, model: str, bucket: str) -> float:
        """Seconds that compiling the bucket's programs takes, where no ready pool has them."""
        return (await self._tables.get(model)).compile_s(bucket)

    async def load_s(self, model: str, adapters: Sequence[str]) -> float:
        """Seconds that loading these adapters takes on the ready pool that lacks fewest of them."""
        return (await self._tables.get(model)).load_s(adapters) if adapters else 0.0

    async def unit_s(self, model: str, bucket: str) -> float:
        """Seconds of one unit of what is not of steps, such as an upscaler's tile."""
        return (await self._tables.get(model)).unit_s(bucket)

    async def is_tried(self, job: Job, cost: Cost) -> bool:
        """Return whether to admit a job whose deadline a doubtful cost rules out.

        Nobody knows any more what it costs: one of its bucket at a time is, or none would ever be
        measured again.
        """
        table = await self._tables.get(job.model)
        if not table.is_doubtful(cost):
            return False
        return await self._queue.tries(job.model, job.bucket, cost.stands_s)

    async def newcomer(self, job: Job) -> Place:
        """Return the place that a job would get if it were put now."""
        return (await self._outlooks.get(job.model)).newcomer(job)

    async def thinned_s(self, job: Job, within_s: float) -> float | None:
        """Seconds until a job would last no longer than that beside what is left of all others."""
        return (await self._outlooks.get(job.model)).thinned_s(job, within_s)

    async def slot_free_s(self, model: str) -> float:
        """Seconds until the model's queue takes a job more."""
        outlook = await self._outlooks.get(model)
        seconds = outlook.slot_free_s(self._max_queued)
        return NO_POOL_S if seconds is None else seconds

    async def turn_s(self, job_id: str | None) -> float:
        """Seconds until the tenant of that queued job has its next turn with the job's model."""
        job = await self._queue.get(job_id) if job_id else None
        if job is None or job.state is not JobState.QUEUED:
            return 0.0  # it has just left the queue
        starts_s = (await self._outlooks.get(job.model)).queued(job, rank=0).starts_s
        return NO_POOL_S if starts_s is None else starts_s

    def accepted(self, job: Job) -> None:
        """Count a job that was just put: it goes before others that come before the next read."""
        if outlook := self._outlooks.last(job.model):
            outlook.accepted(job)

    async def place(self, job: Job, rank: int | None = None) -> tuple[int | None, float | None]:
        """Jobs that start before it, and seconds until it ends; None where nobody knows.

        Args:
            rank: jobs of its tenant that go before it; None: Redis is asked.
        """
        if job.state is JobState.QUEUED:
            outlook = await self._outlooks.get(job.model)
            if rank is None:
                rank = await self._queue.rank(job)
            place = outlook.queued(job, rank or 0)
            return place.position, place.ends_s
        if job.state is JobState.RUNNING:
            return None, (await self._outlooks.get(job.model)).running_s(job)
        return None, None

    async def _look(self, model: str) -> WaitEstimator:
        table, look = await self._tables.get(model), await self._queue.queue_snapshot(model)
        return WaitEstimator(look, table, self._rules)
