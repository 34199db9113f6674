"""Pools without a model: each sleeps for a job's duration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from service.jobs.model.job import Usage
from service.jobs.queue import Claim, Queue
from service.jobs.redis.tasks import cancel

Done = Callable[[Claim, float], None]
"""Called with each finished job's claim and its claim time (Unix time)."""


@dataclass(frozen=True)
class Sleepers:
    """`count` pools of a model, `speed` times as fast as the jobs' costs."""

    queue: Queue
    model: str
    count: int
    speed: float
    done: Done

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Serve within the block; a pool's error is raised at the end."""
        pools = [asyncio.create_task(self._serve(f"pool-{n}")) for n in range(self.count)]
        yield
        failed = [pool for pool in pools if pool.done()]
        await cancel(*pools)
        for pool in failed:
            pool.result()

    async def _serve(self, name: str) -> None:
        while True:
            for claim in await self.queue.claim(name, self.model, 1, wait_s=1.0):
                await self._work(claim)

    async def _work(self, claim: Claim) -> None:
        claimed = time.time()
        await asyncio.sleep(claim.job.cost / self.speed)
        if await self.queue.finish(claim, [], Usage(device_seconds=claim.job.cost)):
            self.done(claim, claimed)
