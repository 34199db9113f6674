"""Simulated pools without models that claim from the real queue in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.jobs.model.job import Usage
from service.jobs.queue import Claim, Queue, WorkerState
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.jobs.scheduling.slot_simulation import Load
from tests.service.standin import SPEC

MODEL = SPEC.name
STEPS = 20


@dataclass
class Row:
    """A running job."""

    claim: Claim
    load: Load
    done: float = 0.0


@dataclass
class SimulatedPool:
    """A pool that is `slowness` times as slow as the fastest pool."""

    name: str
    slots: int
    slowness: float = 1.0
    rows: list[Row] = field(default_factory=list)

    def pace(self, row: Row) -> float:
        """Share of the job done per second in the current batch."""
        return 1 / (row.load.duration_s(self.slots, len(self.rows)) * self.slowness)

    def next_end_s(self) -> float:
        return min(((1 - row.done) / self.pace(row) for row in self.rows), default=math.inf)

    def work(self, seconds: float) -> None:
        for row, pace in [(row, self.pace(row)) for row in self.rows]:
            row.done += seconds * pace


class Fleet:
    """Simulated pools and their clock."""

    def __init__(self, queue: Queue, pools: Sequence[SimulatedPool]) -> None:
        self._queue = queue
        self.pools = pools
        self.now = 0.0
        self.started: dict[str, float] = {}
        """Claim times of jobs, in order."""
        self.ended: dict[str, float] = {}

    async def announce(self, costs: dict[str, tuple[float, float]]) -> None:
        """Register the pools with their measured costs.

        Args:
            costs: by bucket: seconds of a job alone and in a full batch, on the fastest pool.
        """
        for pool in self.pools:
            facts = PoolFacts(f"x{pool.slowness}", pool.slots)
            await self._queue.register(pool.name, SPEC, ready=True, facts=facts)
            rows = {}
            for bucket, (alone_s, full_s) in costs.items():
                for batch, seconds in ((1, alone_s), (pool.slots, full_s)):
                    step_s = seconds / STEPS * pool.slowness
                    row = CostRow(step_s=step_s, encode_s=0, decode_s=0)
                    rows[CostKey(bucket, facts.layout, batch)] = row
            await self._queue.measured(MODEL, rows)

    async def run(self, until: float = math.inf) -> None:
        """Run until a time, or until all jobs are done."""
        while True:
            await self._claim()
            step = min(pool.next_end_s() for pool in self.pools)
            if self.now + step > until or step == math.inf:
                break
            await self._work(step)
        if until < math.inf:
            await self._work(until - self.now)

    async def report(self) -> None:
        """Report the progress of all rows."""
        for pool in self.pools:
            for row in pool.rows:
                await self._queue.progress(row.claim, round(row.done * STEPS), STEPS)

    async def _claim(self) -> None:
        """Claim, least loaded pool first, like pools that wait for claims."""
        for pool in sorted(self.pools, key=lambda pool: len(pool.rows) / pool.slots):
            while len(pool.rows) < pool.slots:
                claims = await self._queue.claim(
                    pool.name, MODEL, 1, WorkerState(slowness=pool.slowness)
                )
                if not claims:
                    break
                job = claims[0].job
                self.started[job.id] = self.now
                pool.rows.append(Row(claims[0], Load(job.cost, job.run_s)))

    async def _work(self, seconds: float) -> None:
        self.now += seconds
        for pool in self.pools:
            pool.work(seconds)
            for row in [row for row in pool.rows if row.done > 1 - 1e-9]:
                pool.rows.remove(row)
                job = row.claim.job
                self.ended[job.id] = self.now
                await self._queue.finish(row.claim, [], Usage(device_seconds=job.cost))
