"""Telling of a pool's costs to the other rooms, and learning how it compares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import (
    CostKey,
    CostRow,
    CostTable,
    PoolFacts,
    changed,
    confirmed,
)
from workers.engine.engine import Engine
from workers.engine.latency_stats import describe
from workers.pool.measuring import Known
from workers.retry import QUEUE_ERRORS

TELL_EVERY_S, APART_S = 5.0, 0.05
"""Interval of one pool's reports; and of all ready pools of a model together, on average: reading
the table of a thousand takes Redis 1.5 ms."""
WORTH_TELLING = 0.05
"""Relative change of a time that is worth a report."""
KNOWN_S = 86400.0
"""Age up to which a starting pool trusts what others of its kind have measured of batches."""
CONFIRM_S = 20.0
"""Interval after which an unchanged time is reported again if it was measured again."""

log = logging.getLogger(__name__)


class CostReporter:
    """Tells the queue what one engine has measured, and learns how its pool compares.

    Args:
        pool: its name in the settings, which equal pools share.
    """

    def __init__(self, engine: Engine, queue: Queue, pool: str) -> None:
        self._engine = engine
        self._queue = queue
        self.model = engine.pipeline.spec.name
        self._reported: Mapping[CostKey, CostRow] = {}
        self.pause_s = TELL_EVERY_S
        """Pause until the next report."""
        self._layout = describe(pool, engine.layout, engine.batching)
        self.slowness = 1.0
        """Duration of an image here relative to the fastest ready pool."""
        self.slowness_in: Mapping[str, float] = {}
        """The same of each bucket that others have measured, too."""

    @property
    def facts(self) -> PoolFacts:
        """Return what the pool announces of itself now."""
        adapters = self._engine.adapters
        return PoolFacts(
            self._layout,
            self._engine.slots,
            self._engine.costs.at_hand,
            tuple(adapters.digests),
            adapters.load_s,
        )

    @property
    def warm(self) -> list[str]:
        """Buckets that are compiled, or lie compiled in files."""
        return list(self._engine.costs.at_hand)

    async def known(self) -> Known:
        """Return what pools of this kind have measured lately; empty while Redis is away."""
        try:
            table = await self._queue.costs(self.model)
        except QUEUE_ERRORS as error:
            log.info("nothing is known of what was measured before: %s", error)
            return ()
        return {
            (key.bucket, key.batch)
            for key, row in table.rows.items()
            if key.layout == self._layout and table.at - row.at < KNOWN_S
        }

    async def run(self) -> None:
        """Report news every few seconds, until canceled; less often where there are many pools."""
        while True:
            await asyncio.sleep(self.pause_s)
            await self.tell()

    async def tell(self) -> None:
        """Report news; without Redis, the next time."""
        devices = self._engine.layout.mesh.size
        rows = self._engine.costs.rows(self._layout, devices)
        rows |= self._engine.upscalers.rows(self._layout, devices)
        try:
            table = await self._queue.costs(self.model)
            known = {key: row for key, row in self._reported.items() if key in table.rows}
            again = confirmed(rows, known, table, CONFIRM_S)
            if news := again | changed(rows, known, WORTH_TELLING):
                await self._queue.measured(self.model, news)
                table = CostTable({**table.rows, **news}, table.pools)
        except QUEUE_ERRORS as error:
            log.info("costs cannot be told now: %s", error)
            return
        self._reported = {**known, **news}
        self._engine.costs.elsewhere = table.compiled.get(self._layout, {})
        await self._engine.look_for(key.bucket for key in table.rows if key.layout == self._layout)
        self.slowness = table.slowness(self._layout)
        self.pause_s = max(TELL_EVERY_S, APART_S * len(table.pools))
        ours, by_bucket = {key.bucket for key in rows}, table.slowness_by_bucket(self._layout)
        self.slowness_in = {name: ratio for name, ratio in by_bucket.items() if name in ours}
