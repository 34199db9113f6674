"""What a long queue costs: `python -m tests.load.backlog [--jobs 1000 100000]`.

Fills an embedded Redis with jobs of many tenants, weights, shapes and costs, and lets simulated
pools claim eight at a time and finish them at once: no model, no waiting, so that Redis is what is
measured. Prints jobs claimed a second, the time of a claim, bytes a job, and how far the tenants'
shares are from their weights.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from redis.asyncio import Redis

from deploy.redis import embedded
from service.jobs.job import Job, Usage, new_job_id
from service.jobs.queue import Queue
from service.settings import QueueSettings

MODEL = "flux"
SLOTS = 8
POOLS = 1000
TENANTS = 5000
SHAPES = 200
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
class Seen:
    """By all simulated pools together."""

    claims_s: list[float] = field(default_factory=list)
    jobs: int = 0
    device_seconds: Counter[str] = field(default_factory=Counter)


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
    waiting = [a_job(rng, tenants) for _ in range(jobs)]

    async def put() -> None:
        while waiting:
            await queue.put(waiting.pop())

    await asyncio.gather(*(put() for _ in range(32)))


async def server_us(redis: Redis) -> float:
    """Microseconds of the server's processor for scripts so far."""
    stats = await redis.info("commandstats")
    return sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


async def measure(url: str, jobs: int, seconds: float) -> str:
    settings = QueueSettings(max_queued=10**9)
    queue = await Queue.connect(url, settings)
    async with Redis.from_url(url, decode_responses=True) as redis:
        await redis.flushall()
        empty = (await redis.info("memory"))["used_memory"]
        began = time.perf_counter()
        await fill(queue, jobs, TENANTS)
        filled_s = time.perf_counter() - began
        bytes_a_job = ((await redis.info("memory"))["used_memory"] - empty) / jobs
        seen, before = Seen(), await server_us(redis)
        began = time.perf_counter()
        names = iter(f"pool-{n % POOLS}" for n in range(10**9))
        until = began + seconds
        # One after the other: what waits for this process's own turn is no time of the queue's.
        while time.perf_counter() < until and (await one_turn(queue, next(names), seen)):
            pass
        wall_s = time.perf_counter() - began
        server_s = (await server_us(redis) - before) / 1e6
    await queue.close()
    p50, p99 = (statistics.quantiles(seen.claims_s, n=100)[i] * 1e3 for i in (49, 98))
    return (
        f"{jobs:7} queued ({jobs / filled_s:.0f} put/s, {bytes_a_job:.0f} bytes each): "
        f"{seen.jobs / server_s:.0f} jobs/s of the server's processor "
        f"({seen.jobs / wall_s:.0f}/s with this client), "
        f"claim p50 {p50:.2f} ms, p99 {p99:.2f} ms, {len(seen.claims_s)} claims"
    )


async def one_turn(queue: Queue, name: str, seen: Seen) -> bool:
    """One claim and its ends; whether there was something to claim."""
    started = time.perf_counter()
    claims = await queue.claim(name, MODEL, SLOTS)
    seen.claims_s.append(time.perf_counter() - started)
    for claim in claims:
        await queue.finish(claim, [], Usage(steps=28, device_seconds=claim.job.cost))
        seen.jobs += 1
        seen.device_seconds[claim.job.tenant] += claim.job.cost
    return bool(claims)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
        for jobs in options.jobs:
            print(asyncio.run(measure(url, jobs, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
