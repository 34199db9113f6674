"""Cost of a queue snapshot of a long queue: `python -m lab.load.outlook`.

Fills an embedded Redis with jobs of 5,000 tenants, 8,000 of them claimed. Prints the time of a
snapshot in the server and in the front end, and the time to estimate a job's position from it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from redis.asyncio import Redis

from deploy.local.embedded_redis import embedded
from lab.load.backlog import MODEL, POOLS, SLOTS, TENANTS, fill, server_us
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.wait_estimator import Rules, WaitEstimator
from service.settings.queue import QueueSettings

LOOKS = 20
ROW = CostRow(step_s=0.1, encode_s=0, decode_s=0)


async def measure(url: str, jobs: int, claimed: int) -> str:
    queue = await Queue.connect(url, QueueSettings(max_queued=10**9, lease_s=1000))
    async with Redis.from_url(url, decode_responses=True) as redis:
        await redis.flushall()
        await fill(queue, jobs, TENANTS)
        for number in range(claimed // SLOTS):
            await queue.claim(f"pool-{number}", MODEL, SLOTS)
        before, started = await server_us(redis), time.perf_counter()
        for _ in range(LOOKS):
            snapshot = await queue.queue_snapshot(MODEL)
        wall_s = (time.perf_counter() - started) / LOOKS
        server_s = (await server_us(redis) - before) / 1e6 / LOOKS
        pools = {f"pool-{number}": PoolFacts("x", SLOTS) for number in range(POOLS)}
        table = CostTable({CostKey("shape-1", "x", 1): ROW}, pools)
        waiting = [job for job in await queue.list(limit=100) if job.state == "queued"]
    outlook = WaitEstimator(snapshot, table, Rules(30, 300))
    started = time.perf_counter()
    outlook.estimate(waiting[0], 0)
    first_s = time.perf_counter() - started
    for job in waiting:
        outlook.estimate(job, 3)
    each_s = (time.perf_counter() - started - first_s) / len(waiting)
    await queue.close()
    return (
        f"{jobs:7} queued: a look takes {server_s * 1e3:.1f} ms of the server, "
        f"{wall_s * 1e3:.1f} ms in all; the first place {first_s * 1e3:.1f} ms, "
        f"each further one {each_s * 1e3:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 20_000])
    parser.add_argument("--running", type=int, default=8_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
        for jobs in options.jobs:
            claimed = min(options.running, jobs // 2)
            print(asyncio.run(measure(url, jobs, claimed)), flush=True)


if __name__ == "__main__":
    main()
