"""Deadlines met and waits, ours against first come, first served: `python -m tests.load.trace`.

One trace of pictures and clips by several tenants, each request with a deadline of so many times
its own run time, at several loads, against the real scripts. Pools only sleep, `SPEED` times as
fast as they would run. The trace is drawn at random from a fixed seed: no record of real users.
First come, first served is the same queue, given one tenant and no deadlines, and a pool that does
not look at them: what is late when it ends has missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from deploy.redis import embedded
from service.jobs.job import PRIORITIES, Job, Usage, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings import QueueSettings

MODEL = "mixed"
SPEED = 30.0
POOLS = 8
MINUTES = 20.0
LOADS = (0.7, 1.0, 1.3, 1.6)
KINDS = (("schnell", 1.0, 0.60), ("dev", 6.0, 0.32), ("clip", 90.0, 0.08))
"""Bucket, seconds of one alone, and how often it is asked for."""
SCALES = (2.0, 4.0, 12.0)
"""Deadlines over run times."""
TENANTS = (("studio", 3.0, 0.5), ("app", 2.0, 0.3), ("hobby", 1.0, 0.2))
"""Name, weight, and how often it asks."""


@dataclass(frozen=True)
class Ask:
    at_s: float
    kind: str
    run_s: float
    scale: float
    tenant: str
    weight: float
    priority: int

    @property
    def deadline_s(self) -> float:
        """After it was asked for."""
        return self.scale * self.run_s + 2.0


@dataclass(frozen=True)
class Answer:
    ask: Ask
    wait_s: float | None
    """Until it was started; None: never."""
    took_s: float | None
    """Until it was done."""

    @property
    def in_time(self) -> bool:
        return self.took_s is not None and self.took_s <= self.ask.deadline_s


def trace(load: float, seed: int = 11) -> Iterator[Ask]:
    """Requests as they come, by a Poisson process, so that all of them take `load` of the pools."""
    rng = random.Random(seed)
    mean_s = sum(run_s * share for _, run_s, share in KINDS)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(load * POOLS / mean_s)) < MINUTES * 60:
        kind, run_s, _ = rng.choices(KINDS, [share for *_, share in KINDS])[0]
        tenant, weight, _ = rng.choices(TENANTS, [share for *_, share in TENANTS])[0]
        priority = rng.choices(list(PRIORITIES.values()), [0.1, 0.8, 0.1])[0]
        yield Ask(at_s, kind, run_s, rng.choice(SCALES), tenant, weight, priority)


class Run:
    """One trace through one queue."""

    def __init__(self, queue: Queue, asks: Sequence[Ask], *, fair: bool) -> None:
        self._queue = queue
        self._asks = asks
        self._fair = fair
        self._came: dict[str, tuple[Ask, float]] = {}
        self.answers: list[Answer] = []

    async def go(self) -> list[Answer]:
        pools = [asyncio.create_task(self._serve(f"pool-{n}")) for n in range(POOLS)]
        began = time.monotonic()
        for ask in self._asks:
            await asyncio.sleep(max(0.0, began + ask.at_s / SPEED - time.monotonic()))
            await self._put(ask)
        await self._until_empty()
        for pool in pools:
            pool.cancel()
        await asyncio.gather(*pools, return_exceptions=True)
        self.answers += [Answer(ask, None, None) for ask, _ in self._came.values()]
        return self.answers

    async def _put(self, ask: Ask) -> None:
        now = time.time()
        ours = {
            "tenant": ask.tenant,
            "weight": ask.weight,
            "priority": ask.priority,
            "deadline_at": now + ask.deadline_s / SPEED,
            "run_s": ask.run_s / SPEED,
        }
        job = Job(
            id=new_job_id(),
            model=MODEL,
            bucket=ask.kind,
            cost=ask.run_s / SPEED,
            **(ours if self._fair else {}),
        )
        self._came[job.id] = (ask, now)
        await self._queue.put(job)

    async def _until_empty(self) -> None:
        """All are done, or will not be."""
        while any([await self._is_open(job_id) for job_id in list(self._came)]):
            await asyncio.sleep(0.2)
            await self._queue.reap()

    async def _is_open(self, job_id: str) -> bool:
        job = await self._queue.get(job_id)
        return job is not None and not job.state.ended

    async def _serve(self, name: str) -> None:
        while True:
            for claim in await self._queue.claim(name, MODEL, 1, wait_s=1.0):
                await self._work(claim)

    async def _work(self, claim: Claim) -> None:
        ask, came = self._came[claim.job.id]
        wait_s = (time.time() - came) * SPEED
        await asyncio.sleep(ask.run_s / SPEED)
        usage = Usage(device_seconds=claim.job.cost)
        if await self._queue.finish(claim, [], usage):
            del self._came[claim.job.id]
            self.answers.append(Answer(ask, wait_s, (time.time() - came) * SPEED))


async def run(url: str, load: float, *, fair: bool) -> list[Answer]:
    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, QueueSettings(lease_s=600, priority_advance_s=1.0))
    try:
        return await Run(queue, list(trace(load)), fair=fair).go()
    finally:
        await queue.close()


def row(name: str, load: float, answers: Iterable[Answer]) -> dict[str, object]:
    every = list(answers)
    met = sum(answer.in_time for answer in every) / len(every)
    waits = [answer.wait_s for answer in every if answer.wait_s is not None]
    cuts = statistics.quantiles(waits, n=100)
    by_kind = {
        kind: statistics.mean(a.in_time for a in every if a.ask.kind == kind) for kind, *_ in KINDS
    }
    return {
        "order": name,
        "load": load,
        "requests": len(every),
        "in_time": met,
        "wait_p50_s": cuts[49],
        "wait_p99_s": cuts[98],
        **{f"in_time_{kind}": share for kind, share in by_kind.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, embedded(Path(folder)) as url:
        for load in options.loads:
            for name, fair in (("first come", False), ("ours", True)):
                rows.append(row(name, load, asyncio.run(run(url, load, fair=fair))))
                print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
