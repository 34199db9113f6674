"""Deadlines met and waits, our queue against first come, first served: `python -m lab.load trace`.

A trace of images and videos by several tenants, each with a deadline proportional to its run time,
at several loads, against the real scripts. Pools only sleep, `SPEED` times as fast as they would
run. The trace is random with a fixed seed, not a record of real users.

First come, first served is the same queue with a single tenant, without deadlines; jobs that end
late have missed. `first come, no late ones` has a single tenant and deadlines that do not affect
the order: like ours, it drops jobs that cannot meet them. Its difference to ours is due to the
order alone.
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

from lab.load.sleepers import Sleepers
from service.jobs.model.job import PRIORITIES, Job, new_job_id
from service.jobs.queue import Claim, Queue
from service.settings.queue import QueueSettings
from tests.workers.polling import until

MODEL = "mixed"
SPEED = 30.0
POOLS = 8
MINUTES = 20.0
LOADS = (0.7, 1.0, 1.3, 1.6)
KINDS = (("schnell", 1.0, 0.60), ("dev", 6.0, 0.32), ("clip", 90.0, 0.08))
"""Bucket, seconds alone, and share of the requests."""
SCALES = (2.0, 4.0, 12.0)
"""Deadline divided by run time."""
END_S = 600.0
"""Time-out in real seconds for the jobs left after the last request."""
TENANTS = (("studio", 3.0, 0.5), ("app", 2.0, 0.3), ("hobby", 1.0, 0.2))
"""Name, weight, and share of the requests."""

DEFAULTS = QueueSettings()


class Order(StrEnum):
    FIRST_COME = "first come"
    NO_LATE_ONES = "first come, no late ones"
    OURS = "ours"

    def settings(self) -> QueueSettings:
        """Return default settings except for leases, which are not measured. Times pass `SPEED`
        times as fast, but device-seconds are the trace's."""
        credit_s = DEFAULTS.deadline_credit_s if self is Order.OURS else 0.0
        priority_s = DEFAULTS.priority_s / SPEED
        return QueueSettings(lease_s=600, priority_s=priority_s, deadline_credit_s=credit_s)

    def scheduling_fields(self, arrival: TraceRequest) -> dict[str, Any]:
        """Return the scheduling fields of a job submitted now."""
        if self is Order.FIRST_COME:
            return {}
        deadline_at = time.time() + arrival.deadline_s / SPEED
        deadline = {"deadline_at": deadline_at, "run_s": arrival.run_s / SPEED}
        if self is Order.NO_LATE_ONES:
            return deadline
        return {
            "tenant": arrival.tenant,
            "weight": arrival.weight,
            "priority": arrival.priority,
            **deadline,
        }


@dataclass(frozen=True)
class TraceRequest:
    at_s: float
    kind: str
    run_s: float
    scale: float
    tenant: str
    weight: float
    priority: int

    @property
    def deadline_s(self) -> float:
        """Seconds after the arrival."""
        return self.scale * self.run_s + 2.0


@dataclass(frozen=True)
class Answer:
    request: TraceRequest
    wait_s: float | None
    """Seconds until the start; None: never started."""
    took_s: float | None
    """Seconds until the end."""

    @property
    def in_time(self) -> bool:
        return self.took_s is not None and self.took_s <= self.request.deadline_s


def trace(load: float, minutes: float = MINUTES, seed: int = 11) -> Iterator[TraceRequest]:
    """Yield requests of a Poisson process that takes `load` of the pools' capacity."""
    rng = random.Random(seed)
    mean_s = sum(run_s * share for _, run_s, share in KINDS)
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(load * POOLS / mean_s)) < minutes * 60:
        kind, run_s, _ = rng.choices(KINDS, [share for *_, share in KINDS])[0]
        tenant, weight, _ = rng.choices(TENANTS, [share for *_, share in TENANTS])[0]
        priority = rng.choices(list(PRIORITIES.values()), [0.1, 0.8, 0.1])[0]
        yield TraceRequest(at_s, kind, run_s, rng.choice(SCALES), tenant, weight, priority)


class Run:
    """A trace on a queue."""

    def __init__(self, queue: Queue, requests: Sequence[TraceRequest], order: Order) -> None:
        self._queue = queue
        self._requests = requests
        self._order = order
        self._came: dict[str, tuple[TraceRequest, float]] = {}
        self._answers: list[Answer] = []

    async def go(self) -> list[Answer]:
        started = time.monotonic()
        async with Sleepers(self._queue, MODEL, POOLS, SPEED, self._done).at_work():
            for arrival in self._requests:
                await asyncio.sleep(max(0.0, started + arrival.at_s / SPEED - time.monotonic()))
                await self._put(arrival)
            await until(self._is_empty, END_S)
        unanswered = [Answer(arrival, None, None) for arrival, _ in self._came.values()]
        return self._answers + unanswered

    async def _put(self, arrival: TraceRequest) -> None:
        job = Job(
            id=new_job_id(),
            model=MODEL,
            bucket=arrival.kind,
            cost=arrival.run_s,
            **self._order.scheduling_fields(arrival),
        )
        self._came[job.id] = (arrival, time.time())
        await self._queue.put(job)

    async def _is_empty(self) -> bool:
        """Whether all jobs are done or expired."""
        await self._queue.reap()
        jobs = [await self._queue.get(job_id) for job_id in list(self._came)]
        return all(job is None or job.state.ended for job in jobs)

    def _done(self, claim: Claim, claimed: float) -> None:
        arrival, submitted_at = self._came.pop(claim.job.id)
        took_s = (time.time() - submitted_at) * SPEED
        self._answers.append(Answer(arrival, (claimed - submitted_at) * SPEED, took_s))


async def run(url: str, requests: Sequence[TraceRequest], order: Order) -> list[Answer]:
    async with Redis.from_url(url) as redis:
        await redis.flushall()
    queue = await Queue.connect(url, order.settings())
    try:
        return await Run(queue, requests, order).go()
    finally:
        await queue.close()


@dataclass(frozen=True)
class Row:
    """Result of the trace at a load with an order."""

    order: Order
    load: float
    answers: Sequence[Answer]

    def in_time(self, kind: str | None = None) -> float:
        """Share of all requests that met their deadline."""
        return statistics.mean(
            answer.in_time for answer in self.answers if kind in (None, answer.request.kind)
        )

    def wait_s(self, percent: int) -> float:
        """Percentile of the waits of started requests."""
        waits = [answer.wait_s for answer in self.answers if answer.wait_s is not None]
        return statistics.quantiles(waits, n=100)[percent - 1]


def rows(url: str, loads: Sequence[float], minutes: float = MINUTES) -> Iterator[Row]:
    for load in loads:
        requests = list(trace(load, minutes))
        for order in Order:
            yield Row(order, load, asyncio.run(run(url, requests, order)))


def table(result_rows: Iterable[Row]) -> Iterator[str]:
    kinds = [kind for kind, *_ in KINDS]
    yield "| load | order | in time | " + " | ".join(kinds) + " | wait p50 | p99 |"
    yield "|---|---|---|" + "---|" * len(kinds) + "---|---|"
    for row in result_rows:
        cells = [f"{row.in_time(kind):.0%}" for kind in (None, *kinds)]
        cells += [f"{row.wait_s(percent):.1f} s" for percent in (50, 99)]
        yield f"| {row.load} | {row.order} | " + " | ".join(cells) + " |"
