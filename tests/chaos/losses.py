"""Measures the cost of each failure for a running job: `python -m tests.chaos.losses`.

Runs one job of four images at a time with the default lease; each time another failure happens
midway. Prints a row of a Markdown table for each failure.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from redis.exceptions import RedisError

from service.jobs.model.job import Job
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from tests.chaos.clients import Client
from tests.chaos.history import History
from tests.chaos.orders import REQUESTS, TENANTS
from tests.chaos.plan import POOLS
from tests.chaos.processes import Process, until
from tests.chaos.system import START_S, Pace, System

AWAY_S = 5.0
BEYOND_LEASE_S = 20.0
ROUNDS = 2
DEFAULTS = QueueSettings()
PACE = Pace(DEFAULTS.lease_s, DEFAULTS.reap_every_s)
BODY = REQUESTS["long"] | {"num_images": 4}
TENANT = next(iter(TENANTS))


@dataclass(frozen=True)
class Life:
    """Duration and repeated work of a job."""

    lasted_s: float
    repeated: int
    """Steps that were done twice."""
    attempts: int


class Losses:
    def __init__(self, system: System, client: Client, queue: Queue) -> None:
        self._system = system
        self._client = client
        self._queue = queue

    async def life(self, failure: Callable[[Process], Awaitable[None]]) -> Life:
        """Run a job and apply a failure after half of its steps."""
        await self._all_ready()
        response = await self._client.until_answered("POST", "/v1/generate", TENANT, json=BODY)
        job_id = response.json()["id"]
        job = await self._until(job_id, lambda job: job.step > job.steps / 2)
        await failure(await self._pool_of(job))
        ended = await self._until(job_id, lambda job: job.state.ended)
        assert ended.state == "succeeded", ended
        lasted_s = (ended.finished_at or 0) - ended.created_at
        return Life(lasted_s, await self._repeated(job_id), ended.attempts)

    async def _all_ready(self) -> None:
        for name in POOLS:
            await until(self._system.processes[name].ready, START_S, f"{name} is ready")

    async def _until(self, job_id: str, is_so: Callable[[Job], bool]) -> Job:
        """Wait for a condition on the job, also while Redis is unavailable."""
        job: Job | None = None

        async def is_there() -> bool:
            nonlocal job
            with suppress(RedisError, OSError):
                job = await self._queue.get(job_id)
                return job is not None and is_so(job)
            return False

        await until(is_there, START_S, "what is waited for")
        assert job is not None
        return job

    async def _pool_of(self, job: Job) -> Process:
        """Find the pool by its log, because pool names end at random."""
        matches = [
            process
            for process in self._system.processes.values()
            if f"pool {job.pool} is ready" in await asyncio.to_thread(process.log.read_text)
        ]
        return matches[0]

    async def _repeated(self, job_id: str) -> int:
        """Sum of the steps by which progress fell back between claims."""
        furthest, repeated, is_first = 0, 0, False
        async for event in self._queue.events(job_id):
            if event.name == "running":
                is_first = True
            elif event.name == "progress":
                step = event.data["step"]
                repeated += max(0, furthest - step) if is_first else 0
                furthest, is_first = max(furthest, step), False
        return repeated


async def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="losses-"))
    system = System(folder, History(), PACE)
    try:
        await system.start()
        client = Client(system.fronts, system.api_keys)
        queue = await Queue.connect(system.server.url, DEFAULTS)
        await measure(system, Losses(system, client, queue))
        await queue.close()
        await client.close()
    finally:
        system.close()


async def measure(system: System, losses: Losses) -> None:
    """Print all rows of the table."""

    async def nothing(pool: Process) -> None:
        pass

    async def kill(pool: Process) -> None:
        pool.kill()

    async def drain(pool: Process) -> None:
        pool.drain()

    async def freeze(pool: Process) -> None:
        pool.freeze()
        await asyncio.sleep(BEYOND_LEASE_S)
        pool.thaw()

    async def kill_fronts(pool: Process) -> None:
        for name in ("front-0", "front-1"):
            system.processes[name].kill()

    async def kill_redis(pool: Process) -> None:
        await system.server.kill(AWAY_S)

    async def freeze_redis(pool: Process) -> None:
        await system.server.freeze(BEYOND_LEASE_S)

    async def break_store(pool: Process) -> None:
        system.wall.put_up()
        await asyncio.sleep(AWAY_S)
        system.wall.take_down()

    acts: dict[str, Any] = {
        "nothing": nothing,
        "`kill -9` of its pool": kill,
        f"its pool stands still for {BEYOND_LEASE_S:.0f} s": freeze,
        "SIGTERM to its pool": drain,
        "`kill -9` of both front ends": kill_fronts,
        f"`kill -9` of Redis, away for {AWAY_S:.0f} s": kill_redis,
        f"Redis stands still for {BEYOND_LEASE_S:.0f} s": freeze_redis,
        f"the store is away for {AWAY_S:.0f} s": break_store,
    }
    undisturbed_s = 0.0
    print("| what happens | it takes longer by | steps done twice | claims |\n|---|---|---|---|")
    for name, act in acts.items():
        lives = [await losses.life(act) for _ in range(ROUNDS)]
        durations_s = [life.lasted_s for life in lives]
        undisturbed_s = undisturbed_s or median(durations_s)
        more = ", ".join(f"{duration_s - undisturbed_s:.1f}" for duration_s in durations_s)
        repeated = ", ".join(str(life.repeated) for life in lives)
        claims = ", ".join(str(life.attempts) for life in lives)
        print(f"| {name} | {more} s | {repeated} of {4 * 1000} | {claims} |", flush=True)
    print(f"undisturbed: {undisturbed_s:.1f} s")


if __name__ == "__main__":
    began = time.monotonic()
    asyncio.run(main())
    print(f"measured in {time.monotonic() - began:.0f} s")
