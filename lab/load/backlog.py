"""Cost of a long queue: `python -m lab.load backlog`.

Fills an embedded Redis with jobs of many tenants, weights, shapes and costs, and claims some for
simulated pools in sequence. Without models and waiting, only Redis is measured. Jobs per second are
given by the server's processor time, and by wall clock for one caller, who is slower; claim times
are the caller's.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis

from service.jobs.model.job import Job, new_job_id
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings

MODEL = "flux"
SLOTS = 8
POOLS = 1000
TENANTS = 5000
SHAPES = 200
PUTTERS = 32
CLAIMED, MANY = 5_000, 50_000
"""Maximum number of claimed jobs: for every backlog, so that rows compare; and for the longest
backlog once more, while the server rewrites its file."""
REQUEST = {
    "prompt": "a red circle on a blue background, seen from above, in the style of a woodcut",
    "seed": 1234567890,
    "width": 1024,
    "height": 1024,
    "num_inference_steps": 28,
    "guidance_scale": 3.5,
    "num_images": 1,
    "output": {"format": "png"},
}


@dataclass
class ClaimStats:
    """Claims of all simulated pools together."""

    claims_s: list[float] = field(default_factory=list)
    jobs: int = 0


def a_job(rng: random.Random, tenants: int) -> Job:
    tenant = rng.randrange(tenants)
    return Job(
        id=new_job_id(),
        model=MODEL,
        bucket=f"shape-{rng.randrange(SHAPES)}",
        tenant=f"tenant-{tenant}",
        weight=1 + tenant % 4,
        cost=rng.choice([0.5, 3.0, 60.0]),
        request=REQUEST,
        steps=28,
    )


async def fill(queue: Queue, jobs: int, tenants: int) -> None:
    rng = random.Random(7)
    await put_all(queue, [a_job(rng, tenants) for _ in range(jobs)])


async def put_all(queue: Queue, jobs: list[Job]) -> None:
    """Submit jobs in order, many concurrently."""
    waiting = iter(jobs)

    async def put() -> None:
        for job in waiting:
            await queue.put(job)

    await asyncio.gather(*(put() for _ in range(PUTTERS)))


async def server_us(redis: Redis) -> float:
    """Processor microseconds that the server has spent on scripts."""
    stats = await redis.info("commandstats")
    return sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


async def measure(url: str, jobs: int, slots: int, seconds: float, most: int = CLAIMED) -> str:
    """Measure a row of the table: pools that claim `slots` jobs at a time.

    Args:
        seconds: maximum duration of claims, like `most` jobs and half of all jobs.
    """
    queue = await Queue.connect(url, QueueSettings(max_queued=10**9))
    async with Redis.from_url(url, decode_responses=True) as redis:
        await fill(queue, PUTTERS, TENANTS)  # scripts and connections also take memory
        await redis.execute_command("FLUSHALL", "SYNC")
        empty = await memory(redis)
        await fill(queue, jobs, TENANTS)
        bytes_a_job = (await memory(redis) - empty) / jobs
        claim_stats = ClaimStats()
        before, started = await server_us(redis), time.perf_counter()
        names = (f"pool-{n % POOLS}" for n in itertools.count())
        deadline = started + seconds
        # In sequence, so that waits for this process are not counted.
        while time.perf_counter() < deadline and claim_stats.jobs < min(jobs // 2, most):
            await one_turn(queue, next(names), slots, claim_stats)
        elapsed_s = time.perf_counter() - started
        claims_us = (await server_us(redis) - before) / claim_stats.jobs
    await queue.close()
    cuts = statistics.quantiles(claim_stats.claims_s, n=100)
    return (
        f"| {jobs:,} | {slots} | {1e6 / claims_us:,.0f} | {claim_stats.jobs / elapsed_s:,.0f} "
        f"| {cuts[49] * 1e3:.2f} ms | {cuts[98] * 1e3:.2f} ms | {claim_stats.jobs:,} "
        f"| {bytes_a_job:,.0f} |"
    )


async def memory(redis: Redis) -> int:
    """Used memory in bytes, after freed memory is released."""
    await redis.memory_purge()
    return int((await redis.info("memory"))["used_memory"])


async def one_turn(queue: Queue, name: str, slots: int, claim_stats: ClaimStats) -> None:
    started = time.perf_counter()
    claims = await queue.claim(name, MODEL, slots)
    claim_stats.claims_s.append(time.perf_counter() - started)
    claim_stats.jobs += len(claims)


def table(url: str, backlogs: Sequence[int], seconds: float) -> Iterator[str]:
    yield (
        "| queued | at a time | jobs claimed/s | by the clock | claim p50 | p99 | jobs "
        "| bytes each |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for jobs, most in [*((jobs, CLAIMED) for jobs in backlogs), (backlogs[-1], MANY)]:
        for slots in (1, SLOTS):
            yield asyncio.run(measure(url, jobs, slots, seconds, most))
