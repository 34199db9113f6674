"""Waits of a light tenant in a long backlog: `python -m lab.load light`.

Other tenants have 20,000 queued jobs while a light tenant of the same weight submits jobs well
below its share. In start-time fair queueing, each other tenant is at most one job ahead (Goyal, Vin
and Cheng 1996, theorem 4), and a pool becomes free only when a job ends. The bound on the wait is
the sum of these.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator

from redis.asyncio import Redis

from lab.load.backlog import MODEL, REQUEST, SHAPES, put_all
from lab.load.sleepers import Sleepers
from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings.queue import QueueSettings

COSTS = (0.5, 3.0, 20.0)
"""Device-seconds of a job."""
LIGHT = "light"
POOLS = 50
SPEED = 10.0
EVERY_S = 10.0
"""Seconds between the light tenant's jobs of middle cost. They take 0.3 pools; its share of 50
pools with 100 other tenants is 0.5."""


def a_job(rng: random.Random, tenant: str, cost: float) -> Job:
    return Job(
        id=new_job_id(), model=MODEL, bucket=f"shape-{rng.randrange(SHAPES)}", tenant=tenant,
        cost=cost, request=REQUEST, steps=28,
    )  # fmt: skip


async def waits(url: str, others: int, backlog: int, seconds: float) -> list[float]:
    """Waits of the light tenant's jobs, in seconds of the pools' time."""
    rng, put_at, waits_s = random.Random(9), dict[str, float](), list[float]()

    def done(claim: Claim, claimed: float) -> None:
        if claim.job.tenant == LIGHT:
            waits_s.append((claimed - put_at[claim.job.id]) * SPEED)

    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, QueueSettings(max_queued=10**9, lease_s=600))
    tenants = [f"tenant-{n}" for n in range(others)]
    await put_all(
        queue, [a_job(rng, rng.choice(tenants), rng.choice(COSTS)) for _ in range(backlog)]
    )
    async with Sleepers(queue, MODEL, POOLS, SPEED, done).at_work():
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(EVERY_S / SPEED)
            job = a_job(rng, LIGHT, COSTS[1])
            put_at[job.id] = time.time()
            await queue.put(job)
    await queue.close()
    return waits_s


def table(url: str, backlog: int, seconds: float) -> Iterator[str]:
    yield "| tenants before it | its jobs | wait p50 | longest | its share says | first come |"
    yield "|---|---|---|---|---|---|"
    for count in (1, 10, 100):
        delays = asyncio.run(waits(url, count, backlog, seconds))
        bound_s = (count * max(COSTS)) / POOLS + max(COSTS)
        first_come_s = backlog * statistics.mean(COSTS) / POOLS
        yield (
            f"| {count} | {len(delays)} | {statistics.median(delays):.1f} s | {max(delays):.1f} s "
            f"| {bound_s:.1f} s | {first_come_s:,.0f} s |"
        )
