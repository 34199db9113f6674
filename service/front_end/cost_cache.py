"""Cached predictions of costs and waits, from recent copies of the data in Redis."""

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
from service.jobs.scheduling.wait_estimator import Rules, WaitEstimate, WaitEstimator
from service.settings.queue import QueueSettings

T = TypeVar("T")

TABLE_AGE_S = 1.0
ESTIMATOR_AGE_S = 0.25
READING_SHARE = 0.02
"""Maximum share of time spent rereading one value, so that slow reads are cached longer."""

NO_POOL_S = 30.0
"""Retry delay if no ready pool could provide capacity."""


class TimedCache(Generic[T]):
    """Cache of one value per model, reread after `age_s`. Concurrent callers share a read.

    Args:
        grace_s: time for which an old copy is still returned while it is reread in the background,
            so that frequent requests do not wait.
    """

    def __init__(
        self, read: Callable[[str], Awaitable[T]], age_s: float, grace_s: float = 0.0
    ) -> None:
        self._read = read
        self._age_s = age_s
        self._grace_s = grace_s
        self._values: dict[str, tuple[T, float]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._rereading: dict[str, asyncio.Task[None]] = {}

    async def get(self, model: str) -> T:
        """Return a model's value, reread if its copy is too old."""
        copy, until = self._values.get(model, (None, 0.0))
        late_s = time.monotonic() - until
        if copy is not None and late_s < self._grace_s:
            if late_s >= 0 and model not in self._rereading:
                self._rereading[model] = asyncio.create_task(self._reread(model))
            return copy
        async with self._locks[model]:
            copy, until = self._values.get(model, (None, 0.0))
            if copy is None or time.monotonic() >= until:
                copy = await self._reload(model)
        return copy

    def last(self, model: str) -> T | None:
        """Return the last value read for a model, regardless of its age."""
        copy, _ = self._values.get(model, (None, 0.0))
        return copy

    async def forget(self, model: str) -> None:
        """Drop a model's cached value, and discard the result of any read in progress."""
        async with self._locks[model]:
            self._values.pop(model, None)

    async def _reread(self, model: str) -> None:
        try:
            with suppress(RedisError, OSError):  # callers without a copy get the error
                async with self._locks[model]:
                    await self._reload(model)
        finally:
            del self._rereading[model]

    async def _reload(self, model: str) -> T:
        started = time.monotonic()
        copy = await self._read(model)
        now = time.monotonic()
        until = now + max(self._age_s, (now - started) / READING_SHARE)
        self._values[model] = copy, until
        return copy


class CostCache:
    """Cost and wait predictions of one front end."""

    def __init__(self, queue: Queue, settings: QueueSettings) -> None:
        self._queue = queue
        self._max_queued = settings.max_queued
        self._rules = Rules(settings.priority_advance_s, settings.deadline_credit_s)
        self._tables = TimedCache[CostTable](queue.costs, TABLE_AGE_S, TABLE_AGE_S)
        self._estimators = TimedCache[WaitEstimator](
            self._load_estimator, ESTIMATOR_AGE_S, ESTIMATOR_AGE_S
        )

    async def predict(self, job: Job) -> Cost | None:
        """Predict a job's cost on the fastest ready pools; None: no data."""
        return (await self._tables.get(job.model)).predict_passes(job.passes(), job.images)

    async def is_estimated(self, job: Job) -> bool:
        """Return whether a job's predictions come from an estimate, not from measurements."""
        cost = await self.predict(job)
        return cost is not None and cost.is_estimated

    async def compile_s(self, model: str, bucket: str) -> float:
        """Predict the seconds for compiling the bucket's programs, if no ready pool has them."""
        return (await self._tables.get(model)).compile_s(bucket)

    async def load_s(self, model: str, adapters: Sequence[str]) -> float:
        """Predict the seconds for loading adapters on the ready pool that lacks the fewest."""
        return (await self._tables.get(model)).load_s(adapters) if adapters else 0.0

    async def unit_s(self, model: str, bucket: str) -> float:
        """Predict the seconds per unit of work other than steps, such as an upscaler's tile."""
        return (await self._tables.get(model)).unit_s(bucket)

    async def admits_trial(self, job: Job, cost: Cost) -> bool:
        """Decide whether to admit a job whose deadline only an outdated cost estimate rules out.

        One job per bucket is admitted at a time, because otherwise the cost would never be measured
        again.
        """
        table = await self._tables.get(job.model)
        if not table.is_doubtful(cost):
            return False
        return await self._queue.acquire_cost_trial(job.model, job.bucket, cost.valid_s)

    async def new_job_estimate(self, job: Job) -> WaitEstimate:
        """Predict the queue position of a job that is submitted now."""
        return (await self._estimators.get(job.model)).new_job_estimate(job)

    async def retry_wait_s(self, job: Job, within_s: float) -> float | None:
        """Predict the seconds until a job submitted then would finish within `within_s`.

        Future arrivals are ignored.
        """
        return (await self._estimators.get(job.model)).retry_wait_s(job, within_s)

    async def slot_free_s(self, model: str) -> float:
        """Predict the seconds until the model's queue accepts another job."""
        outlook = await self._estimators.get(model)
        seconds = outlook.slot_free_s(self._max_queued)
        return NO_POOL_S if seconds is None else seconds

    async def next_start_s(self, job_id: str | None) -> float:
        """Predict the seconds until the queued job's tenant is next served by the job's model."""
        job = await self._queue.get(job_id) if job_id else None
        if job is None or job.state is not JobState.QUEUED:
            return 0.0  # the job has just left the queue
        starts_s = (await self._estimators.get(job.model)).estimate(job, rank=0).starts_s
        return NO_POOL_S if starts_s is None else starts_s

    def add_accepted(self, job: Job) -> None:
        """Include an accepted job in predictions until the next read."""
        if outlook := self._estimators.last(job.model):
            outlook.add_accepted(job)

    async def position_and_end(
        self, job: Job, rank: int | None = None
    ) -> tuple[int | None, float | None]:
        """Predict how many jobs start earlier, and the seconds until the end; None: unknown.

        Args:
            rank: number of the tenant's jobs that precede it; None: read from Redis.
        """
        if job.state is JobState.QUEUED:
            outlook = await self._estimators.get(job.model)
            if rank is None:
                rank = await self._queue.rank(job)
            place = outlook.estimate(job, rank or 0)
            return place.position, place.ends_s
        if job.state is JobState.RUNNING:
            return None, (await self._estimators.get(job.model)).running_s(job)
        return None, None

    async def _load_estimator(self, model: str) -> WaitEstimator:
        table, look = await self._tables.get(model), await self._queue.queue_snapshot(model)
        return WaitEstimator(look, table, self._rules)
