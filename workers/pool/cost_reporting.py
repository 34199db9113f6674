"""Measuring at warm-up, and telling the other rooms what is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence

from models.interface.pipeline import Fields
from models.spec.model_spec import Batching
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
from workers.engine.errors import NON_FINITE, EngineDied, GenerationFailed
from workers.engine.latency_stats import describe
from workers.programs.bucket_programs import BucketPrograms
from workers.programs.step_latency import TRIALS
from workers.retry import QUEUE_ERRORS

MEASURE_S = 10.0
"""Maximum time of a warm-up request for batches of several images; one image alone is measured
however long it takes."""
ROUNDS = 20
"""Maximum number of full batches: each tries several sizes, and a size may never come up."""
TELL_EVERY_S, APART_S = 5.0, 0.05
"""Interval of one pool's reports; and of all ready pools of a model together, on average: reading
the table of a thousand takes Redis 1.5 ms."""
WORTH_TELLING = 0.05
"""Relative change of a time that is worth a report."""
KNOWN_S = 86400.0
"""Age up to which a starting pool trusts what others of its kind have measured of batches."""
CONFIRM_S = 20.0
"""Interval after which an unchanged time is reported again if it was measured again."""

NO_NUMBERS = (
    "no warm-up request gave finite numbers: the checkpoint's weights are damaged, or its dtype is"
    " too narrow for it (models.*.dtype, activation_dtype)"
)

log = logging.getLogger(__name__)


Known = Collection[tuple[str, int]]
"""Buckets, and sizes of batches of these."""


async def measure(engine: Engine, requests: Sequence[Fields], known: Known = ()) -> str | None:
    """Run the warm-up requests for a few steps, alone and in full batches.

    Returns why no client can be served, where none of them gave finite numbers alone.

    A request that fails is only logged: one of a user may do better.

    Args:
        known: what others have measured lately, so that batches of it need not be tried now.
    """
    started, finite, broken = time.monotonic(), 0, 0
    for fields in requests:
        try:
            programs = await _alone(engine, fields)
            finite += 1
            if all((engine.costs.bucket(fields), size) in known for size in sizes(programs)):
                continue
            async with asyncio.timeout(MEASURE_S):
                for _ in range(ROUNDS):
                    if not programs.is_measured:
                        await _together(engine, fields)
        except TimeoutError:
            log.info("larger batches are measured when they come")
        except GenerationFailed as failure:
            log.warning("a warm-up request failed: %s", failure, exc_info=failure)
            broken += failure.error.code == NON_FINITE
        except EngineDied:
            return None  # whoever waits for that hears of it
    log.info("measured its warm-up requests in %.1f s", time.monotonic() - started)
    return NO_NUMBERS if broken and broken == len(requests) and not finite else None


async def closeness(engine: Engine, requests: Sequence[Fields]) -> Batching:
    """Return what clients are told where batches have several sizes.

    Measured on the first request; a failure is only logged.
    """
    levels = None
    try:
        if requests:
            levels = await engine.levels(requests[0])
    except Exception as error:
        log.warning("how near batches of other sizes come is not known: %s", error)
    log.info("images differ with their company, that of the warm-up by %s levels", levels)
    return Batching(mode="fast", levels=levels)


def sizes(programs: BucketPrograms) -> frozenset[int]:
    """Return the batch sizes that it has programs for."""
    return frozenset(
        batch_layout.size
        for phase in programs.phases.values()
        for batch_layout in phase.batch_layouts
    )


async def _alone(engine: Engine, fields: Fields) -> BucketPrograms:
    """Try a request out, once more by another seed where it gave no finite numbers.

    That may be the seed's or a moment's fault, and not the weights'. Raises: as `Engine.try_out`.
    """
    try:
        return await engine.try_out(fields, TRIALS)
    except GenerationFailed as failure:
        if failure.error.code != NON_FINITE:
            raise
        log.warning("a warm-up request failed and is tried by another seed: %s", failure)
        return await engine.try_out({**fields, "seed": (fields.get("seed") or 0) ^ 1}, TRIALS)


async def _together(engine: Engine, fields: Fields) -> None:
    """Try out as many as there are slots. Raises: the first failure."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(engine.slots):
                group.create_task(engine.try_out(fields, 2 * TRIALS))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


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
