"""Deadlines met and waits, ours against first come, first served: `python -m tests.load trace`.

One trace of images and videos by several tenants, each request with a deadline of so many times
its own run time, at several loads, against the real scripts. Pools only sleep, `SPEED` times as
fast as they would run. The trace is drawn at random from a fixed seed: no record of real users.
First come, first served is the same queue, given one tenant and no deadlines, and pools that do not
look at them: what is late when it ends has missed. The middle between both, `first come, no late
ones`, is given one tenant, and deadlines for which it lets nobody go before another: it only leaves
out what can no longer be met, as ours does. What it misses against ours is due to the order alone.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from service.jobs.model.job import PRIORITIES, Job, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings.queue import QueueSettings
from tests.load.sleepers import Sleepers
from tests.workers.polling import until

MODEL = "mixed"
SPEED = 30.0
POOLS = 8
MINUTES = 20.0
LOADS = (0.7, 1.0, 1.3, 1.6)
KINDS = (("schnell", 1.0, 0.60), ("dev", 6.0, 0.32), ("clip", 90.0, 0.08))
"""Bucket, seconds of one alone, and how often it is asked for."""
SCALES = (2.0, 4.0, 12.0)
"""Deadlines over run times."""
END_S = 600.0
"""For what is left when nobody asks any more, in this machine's time."""
TENANTS = (("studio", 3.0, 0.5), ("app", 2.0, 0.3), ("hobby", 1.0, 0.2))
"""Name, weight, and how often it asks."""

DEFAULTS = QueueSettings()


class Order(StrEnum):
    FIRST_COME = "first come"
    NO_LATE_ONES = "first come, no late ones"
    OURS = "ours"

    def settings(self) -> QueueSettings:
        """The defaults, but for leases, which are not measured; device-seconds are those of the
        trace, other times pass faster."""
        credit_s = DEFAULTS.deadline_credit_s if self is Order.OURS else 0.0
        priority_s = DEFAULTS.priority_s / SPEED
        return QueueSettings(lease_s=600, priority_s=priority_s, deadline_credit_s=credit_s)

    def told(self, ask: Ask) -> dict[str, Any]:
        """What a job put now says of itself."""
        if self is Order.FIRST_COME:
            return {}
        deadline_at = time.time() + ask.deadline_s / SPEED
        late = {"deadline_at": deadline_at, "run_s": ask.run_s / SPEED}
        if self is Order.NO_LATE_ONES:
            return late
        return {"tenant": ask.tenant, "weight": ask.weight, "priority": ask.priority, **late}


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


def trace(load: float, minutes: float = MINUTES, seed: int = 11) -> Iterator[Ask]:
    """Requests as they come, by a Poisson process, so that all of them take `load` of the pools."""
    rng = random.Random(seed)
    mean_s = sum(run_s * share for _, run_s, share in KINDS)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(load * POOLS / mean_s)) < minutes * 60:
        kind, run_s, _ = rng.choices(KINDS, [share for *_, share in KINDS])[0]
        tenant, weight, _ = rng.choices(TENANTS, [share for *_, share in TENANTS])[0]
        priority = rng.choices(list(PRIORITIES.values()), [0.1, 0.8, 0.1])[0]
        yield Ask(at_s, kind, run_s, rng.choice(SCALES), tenant, weight, priority)


class Run:
    """One trace through one queue."""

    def __init__(self, queue: Queue, asks: Sequence[Ask], order: Order) -> None:
        self._queue = queue
        self._asks = asks
        self._order = order
        self._came: dict[str, tuple[Ask, float]] = {}
        self._answers: list[Answer] = []

    async def go(self) -> list[Answer]:
        began = time.monotonic()
        async with Sleepers(self._queue, MODEL, POOLS, SPEED, self._done).at_work():
            for ask in self._asks:
                await asyncio.sleep(max(0.0, began + ask.at_s / SPEED - time.monotonic()))
                await self._put(ask)
            await until(self._is_empty, END_S)
        never = [Answer(ask, None, None) for ask, _ in self._came.values()]
        return self._answers + never

    async def _put(self, ask: Ask) -> None:
        job = Job(
            id=new_job_id(), model=MODEL, bucket=ask.kind, cost=ask.run_s, **self._order.told(ask)
        )
        self._came[job.id] = (ask, time.time())
        await self._queue.put(job)

    async def _is_empty(self) -> bool:
        """All are done, or expired."""
        await self._queue.reap()
        jobs = [await self._queue.get(job_id) for job_id in list(self._came)]
        return all(job is None or job.state.ended for job in jobs)

    def _done(self, claim: Claim, claimed: float) -> None:
        ask, came = self._came.pop(claim.job.id)
        took_s = (time.time() - came) * SPEED
        self._answers.append(Answer(ask, (claimed - came) * SPEED, took_s))


async def run(url: str, asks: Sequence[Ask], order: Order) -> list[Answer]:
    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, order.settings())
    try:
        return await Run(queue, asks, order).go()
    finally:
        await queue.close()


@dataclass(frozen=True)
class Row:
    """What came of the trace at one load, under one order."""

    order: Order
    load: float
    answers: Sequence[Answer]

    def in_time(self, kind: str | None = None) -> float:
        """Which part met its deadline, of all that asked."""
        return statistics.mean(a.in_time for a in self.answers if kind in (None, a.ask.kind))

    def wait_s(self, percent: int) -> float:
        """Of those that were started."""
        waits = [answer.wait_s for answer in self.answers if answer.wait_s is not None]
        return statistics.quantiles(waits, n=100)[percent - 1]


def rows(url: str, loads: Sequence[float], minutes: float = MINUTES) -> Iterator[Row]:
    for load in loads:
        asks = list(trace(load, minutes))
        for order in Order:
            yield Row(order, load, asyncio.run(run(url, asks, order)))


def table(found: Iterable[Row]) -> Iterator[str]:
    kinds = [kind for kind, *_ in KINDS]
    yield "| load | order | in time | " + " | ".join(kinds) + " | wait p50 | p99 |"
    yield "|---|---|---|" + "---|" * len(kinds) + "---|---|"
    for row in found:
        cells = [f"{row.in_time(kind):.0%}" for kind in (None, *kinds)]
        cells += [f"{row.wait_s(percent):.1f} s" for percent in (50, 99)]
        yield f"| {row.load} | {row.order} | " + " | ".join(cells) + " |"
