"""Reports of a worker's measured costs to the queue, and comparison with other workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import (
    CostKey,
    CostRow,
    CostTable,
    PoolFacts,
    changed,
    confirmed,
)
from workers.engine.backend import Backend
from workers.engine.latency_stats import describe
from workers.pool.trials import MeasuredSizes
from workers.retry import QUEUE_ERRORS

REPORT_EVERY_S, FLEET_INTERVAL_S = 5.0, 0.05
"""Seconds between one worker's reports, and average seconds between the reports of all ready
workers of a model: reading a table of a thousand takes Redis 1.5 ms."""
MIN_CHANGE = 0.05
"""Relative change of a time above which it is reported."""
MAX_AGE_S = 86400.0
"""Maximum age of batch measurements of other workers of the same kind that a starting worker
trusts."""
CONFIRM_S = 20.0
"""Seconds after which an unchanged time is reported again, if it was measured again."""

log = logging.getLogger(__name__)


class CostReporter:
    """Reporter of one engine's measured costs, which also computes the worker's relative slowness.

    Args:
        pool: name of the pool in the settings; its workers share measurements.
    """

    def __init__(self, engine: Backend, queue: Queue, pool: str) -> None:
        self._engine = engine
        self._queue = queue
        self.model = engine.pipeline.spec.name
        self._reported: Mapping[CostKey, CostRow] = {}
        self.estimated: Mapping[str, CostRow] = {}
        """Estimated costs of an image alone by bucket, for unmeasured buckets."""
        self.pause_s = REPORT_EVERY_S
        """Seconds until the next cost report."""
        self._layout = describe(pool, engine.place, engine.batching)
        self.slowness = 1.0
        """Duration of an image on this worker relative to the fastest ready worker."""
        self.slowness_in: Mapping[str, float] = {}
        """Relative slowness by bucket, for buckets that others have measured too."""

    @property
    def facts(self) -> PoolFacts:
        """Facts about the worker that its registration in the queue contains."""
        adapters = self._engine.adapters
        return PoolFacts(
            self._layout,
            self._engine.slots,
            self._engine.costs.available,
            tuple(adapters.digests),
            adapters.load_s,
        )

    @property
    def warm(self) -> list[str]:
        """Buckets whose programs are compiled, in memory or in files."""
        return list(self._engine.costs.available)

    async def recent_measurements(self) -> MeasuredSizes:
        """Return recent batch measurements of workers of this kind; empty without Redis."""
        try:
            table = await self._queue.costs(self.model)
        except QUEUE_ERRORS as error:
            log.info("earlier measurements cannot be read: %s", error)
            return ()
        return {
            (key.bucket, key.batch)
            for key, row in table.rows.items()
            if key.layout == self._layout and row.samples and table.at - row.at < MAX_AGE_S
        }

    async def run(self) -> None:
        """Report changes every few seconds until canceled; less often if there are many workers."""
        while True:
            await asyncio.sleep(self.pause_s)
            await self.report()

    async def report(self) -> None:
        """Report changed costs; if Redis is unreachable, the next call does."""
        devices = self._engine.place.devices
        rows = self._engine.costs.rows(self._layout, devices)
        rows |= self._engine.upscalers.rows(self._layout, devices)
        try:
            table = await self._queue.costs(self.model)
            reported = {key: row for key, row in self._reported.items() if key in table.rows}
            by_others = {key for key, row in table.rows.items() if row.samples}
            rows |= self._unmeasured({*rows, *by_others}, devices)
            refreshed = confirmed(rows, reported, table, CONFIRM_S)
            if news := refreshed | changed(rows, reported, MIN_CHANGE):
                await self._queue.measured(self.model, news)
                table = CostTable({**table.rows, **news}, table.pools)
        except QUEUE_ERRORS as error:
            log.info("costs cannot be reported now: %s", error)
            return
        self._reported = {**reported, **news}
        self._engine.costs.reported_compile_s = table.compiled.get(self._layout, {})
        await self._engine.readiness.find_stored(
            key.bucket for key in table.rows if key.layout == self._layout
        )
        self.slowness = table.slowness(self._layout)
        self.pause_s = max(REPORT_EVERY_S, FLEET_INTERVAL_S * len(table.pools))
        ours, by_bucket = {key.bucket for key in rows}, table.slowness_by_bucket(self._layout)
        self.slowness_in = {name: ratio for name, ratio in by_bucket.items() if name in ours}

    def _unmeasured(self, measured: Collection[CostKey], devices: int) -> dict[CostKey, CostRow]:
        """Return the estimates of buckets without a measurement of this kind of worker."""
        buckets = {key.bucket for key in measured if key.layout == self._layout}
        return {
            CostKey(bucket, self._layout, 1): row.model_copy(update={"devices": devices})
            for bucket, row in self.estimated.items()
            if bucket not in buckets
        }
