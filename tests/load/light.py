"""A light tenant behind a long backlog: `python -m tests.load light`.

Other tenants have 20,000 jobs waiting when a light one, of the same weight, asks for one now and
then, well below its share. Start-time fair queueing lets each of the others be at most one job
ahead of it (Goyal, Vin and Cheng 1996, theorem 4), and no pool is free before one of its jobs ends:
what its share says is the sum of these, and it should never wait longer.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator

from redis.asyncio import Redis

from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings.queue import QueueSettings
from tests.load.backlog import MODEL, REQUEST, SHAPES, put_all
from tests.load.sleepers import Sleepers

COSTS = (0.5, 3.0, 20.0)
"""Device-seconds of a job."""
LIGHT = "light"
POOLS = 50
SPEED = 10.0
EVERY_S = 10.0
"""Between the light tenant's jobs, each of the middle cost: 0.3 pools' work, and its share of 50
pools with 100 others is 0.5."""


def a_job(rng: random.Random, tenant: str, cost: float) -> Job:
    return Job(
        id=new_job_id(), model=MODEL, bucket=f"shape-{rng.randrange(SHAPES)}", tenant=tenant,
        cost=cost, request=REQUEST, steps=28,
    )  # fmt: skip


async def waits(url: str, others: int, backlog: int, seconds: float) -> list[float]:
    """Of the light tenant's jobs, in seconds of the pools' time."""
    rng, put_at, found = random.Random(9), dict[str, float](), list[float]()

    def done(claim: Claim, claimed: float) -> None:
        if claim.job.tenant == LIGHT:
            found.append((claimed - put_at[claim.job.id]) * SPEED)

    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, QueueSettings(max_queued=10**9, lease_s=600))
    tenants = [f"tenant-{n}" for n in range(others)]
    await put_all(
        queue, [a_job(rng, rng.choice(tenants), rng.choice(COSTS)) for _ in range(backlog)]
    )
    async with Sleepers(queue, MODEL, POOLS, SPEED, done).at_work():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(EVERY_S / SPEED)
            job = a_job(rng, LIGHT, COSTS[1])
            put_at[job.id] = time.time()
            await queue.put(job)
    await queue.close()
    return found


def table(url: str, backlog: int, seconds: float) -> Iterator[str]:
    yield "| tenants before it | its jobs | wait p50 | longest | its share says | first come |"
    yield "|---|---|---|---|---|---|"
    for others in (1, 10, 100):
        found = asyncio.run(waits(url, others, backlog, seconds))
        said = (others * max(COSTS)) / POOLS + max(COSTS)
        whole = backlog * statistics.mean(COSTS) / POOLS
        yield (
            f"| {others} | {len(found)} | {statistics.median(found):.1f} s | {max(found):.1f} s "
            f"| {said:.1f} s | {whole:,.0f} s |"
        )
