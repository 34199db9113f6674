"""Preemption: a full worker suspends a long job in favor of a short job with precedence.

The queue chooses both jobs (`preempt.lua`). The job's state is stored at a step boundary, and it
resumes later in any worker. The attempt is not counted, and no step is lost.
"""

from __future__ import annotations

import asyncio
import logging

from service.jobs.model.preemption import FullPool
from service.jobs.queue import Queue
from service.settings.pools import PoolSettings
from workers.pool import metrics
from workers.pool.capacity import Capacity
from workers.pool.cost_reporting import CostReporter
from workers.pool.running_jobs import RunningJobs
from workers.retry import QUEUE_ERRORS

REQUEST_EVERY_S = 1.0
"""Seconds between requests to the queue, while the worker is full and has a job to preempt."""
SUSPEND_S = 30.0
"""Timeout to finish the current step and store the job's state."""

log = logging.getLogger(__name__)


class Preemption:
    """Preemption loop of one worker, which suspends jobs that the queue chooses."""

    def __init__(
        self,
        pool: str,
        running: RunningJobs,
        capacity: Capacity,
        cost_reporter: CostReporter,
        settings: PoolSettings,
    ) -> None:
        self._pool = pool
        self._running = running
        self._capacity = capacity
        self._cost_reporter = cost_reporter
        self._quantum_s = settings.quantum_s
        self._ratio = settings.preemption_ratio

    async def run(self, queue: Queue) -> None:
        """Preempt jobs until canceled; a suspension in progress is then left to the drain."""
        while True:
            await asyncio.sleep(min(REQUEST_EVERY_S, self._quantum_s))
            try:
                await self._make_room(queue)
            except QUEUE_ERRORS as error:
                log.info("preemption cannot be requested now: %s", error)

    async def _make_room(self, queue: Queue) -> None:
        if not self._capacity.is_full:
            return
        soonest_s, candidates = self._running.full(self._quantum_s)
        if not candidates:
            return
        cost_reporter = self._cost_reporter
        full = FullPool(
            pool=self._pool,
            model=cost_reporter.model,
            slots=cost_reporter.facts.slots,
            free=self._capacity.free,
            soonest_s=soonest_s,
            held=candidates,
            warm=cost_reporter.warm,
            slowness=cost_reporter.slowness,
            slowness_in=cost_reporter.slowness_in,
        )
        pair = await queue.preempt(full, self._ratio, SUSPEND_S)
        if pair and await self._running.suspend(*pair, SUSPEND_S):
            metrics.preemptions.labels(cost_reporter.model).inc()
