"""Progress of a job's steps that a worker reports to the queue, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest
from redis.asyncio import Redis

from service.jobs.model.job import DEFAULT_TENANT
from service.jobs.queue import Claim, Queue
from tests.workers.jobs import toy_job
from tests.workers.polling import until
from tests.workers.toy import SPEC
from workers.engine.row import Row
from workers.pool.progress import Bill, Progress

STEPS = 4
POOL = "pool"


@pytest.fixture
async def claim(queue: Queue) -> Claim:
    await queue.register(POOL, SPEC, ready=True)
    await queue.put(toy_job(num_inference_steps=STEPS))
    (claim,) = await queue.claim(POOL, SPEC.name, 1)
    return claim


class Painter:
    """Stand-in for an engine that records the steps of requested previews."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    async def preview(self, row: Row, tenant: str = "") -> np.ndarray:
        assert tenant == DEFAULT_TENANT, "in its job's turn"
        self.steps.append(row.done)
        return np.full((8, 8, 3), row.done, np.uint8)


@asynccontextmanager
async def telling(
    queue: Queue, claim: Claim, painter: Painter | None = None, preview_every_s: float = 0
) -> AsyncIterator[Progress]:
    engine = cast(Any, painter)
    progress = Progress(queue, claim, engine, preview_every_s, lambda claim: None, Bill())
    running = asyncio.create_task(progress.run())
    yield progress
    progress.close()
    await asyncio.wait_for(running, 10)


def row_after(steps: int) -> Row:
    shape: Any = None
    all_steps: Any = (None,) * STEPS
    return Row(shape, all_steps, None, lambda row: None, lambda row, error: None, done=steps)


async def calls(redis: Redis) -> int:
    """Return the number of scripts that Redis has run."""
    return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])


@pytest.mark.parametrize("stage", [None, "storing"])
async def test_reported_step_is_not_repeated(
    queue: Queue, claim: Claim, empty_redis: Redis, stage: str | None
) -> None:
    """The end of a job contains more, and must not wait for another report, a round trip."""

    async def is_told() -> bool:
        return (await queue.get(claim.job.id)).step == STEPS

    async with telling(queue, claim) as progress:
        progress.step(0, row_after(STEPS))
        await until(is_told, 10)
        before = await calls(empty_redis)
        if stage:
            progress.stage(0, stage)
    assert await calls(empty_redis) == before


async def test_last_step_is_reported_before_the_end(queue: Queue, claim: Claim) -> None:
    """The last step may follow the one before at once."""
    async with telling(queue, claim) as progress:
        progress.step(0, row_after(STEPS - 1))
        await asyncio.sleep(0)
        progress.step(0, row_after(STEPS))
    assert (await queue.get(claim.job.id)).step == STEPS


@pytest.mark.parametrize(
    ("wanted", "preview_every_s", "steps"), [(1, 3600, [2]), (3, 3600, [1, 2, 3]), (3, 0, [])]
)
async def test_requested_previews_are_sent_even_for_short_jobs(
    queue: Queue, wanted: int, preview_every_s: float, steps: list[int]
) -> None:
    await queue.register(POOL, SPEC, ready=True)
    job = toy_job(num_inference_steps=STEPS).model_copy(update={"previews": wanted})
    await queue.put(job)
    (claim,) = await queue.claim(POOL, SPEC.name, 1)

    async def is_told(step: int) -> bool:
        return (await queue.get(job.id)).step == step

    painter = Painter()
    async with telling(queue, claim, painter, preview_every_s) as progress:
        for step in range(1, STEPS + 1):
            progress.step(0, row_after(step))
            await until(lambda step=step: is_told(step), 10)
    assert painter.steps == steps
