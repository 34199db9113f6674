"""Preemption: a full pool puts a long job aside for a short one that should go before it.

Which one that is, the queue says (`preempt.lua`). The job's state is kept at a step's boundary, and
it goes on when its turn comes again, here or elsewhere: no attempt is counted, and no step is lost.
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

ASK_EVERY_S = 1.0
"""The queue is asked, by a pool that is full and has something to put aside."""
PUT_ASIDE_S = 30.0
"""Time for a step to end, and for what is done to be kept."""

log = logging.getLogger(__name__)


class Preemption:
    """Preemption of one pool's jobs."""

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
        """Preempt until canceled; a job being put aside then is the drain's to keep."""
        while True:
            await asyncio.sleep(min(ASK_EVERY_S, self._quantum_s))
            try:
                await self._make_room(queue)
            except QUEUE_ERRORS as error:
                log.info("cannot ask now for whom to make room: %s", error)

    async def _make_room(self, queue: Queue) -> None:
        if not self._capacity.is_full:
            return
        soonest_s, held = self._running.full(self._quantum_s)
        if not held:
            return
        cost_reporter = self._cost_reporter
        full = FullPool(
            pool=self._pool,
            model=cost_reporter.model,
            slots=cost_reporter.facts.slots,
            free=self._capacity.free,
            soonest_s=soonest_s,
            held=held,
            warm=cost_reporter.warm,
            slowness=cost_reporter.slowness,
            slowness_in=cost_reporter.slowness_in,
        )
        pair = await queue.preempt(full, self._ratio, PUT_ASIDE_S)
        if pair and await self._running.put_aside(*pair, PUT_ASIDE_S):
            metrics.preemptions.labels(cost_reporter.model).inc()
