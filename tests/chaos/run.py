"""A chaos run: an undisturbed part for the expected outputs, the chaos, then the collection of its
history."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from tests.chaos import orders, plan
from tests.chaos.actors import Actors
from tests.chaos.clients import Client
from tests.chaos.history import History, OrderResult
from tests.chaos.observer import Observer
from tests.chaos.processes import LOOK_EVERY_S, marked, until
from tests.chaos.system import DEPOSIT_S, LEDGER_EVERY_S, System

SETTLE_S = 240.0
"""Maximum time between job ends once actions are over; the system shares two cores with other
programs."""
STORED_S = LEDGER_EVERY_S + 60.0
"""Time until the ledger's last record is in a file."""
CLEAN_S = DEPOSIT_S + 40.0
"""Time until deleted and abandoned jobs leave nothing: some rounds of the front ends' cleanup."""


@dataclass(frozen=True)
class Size:
    """Length of a run and number of its actions and orders."""

    span_s: float
    """Seconds of orders and actions."""
    acts: int
    orders: int | None = None
    """None: as many as one of two cores completes in the span, by the undisturbed part."""
    spared: tuple[str, ...] = ()
    """Processes that no action affects."""


class Run:
    """A chaos run. Args: tell: called with log lines."""

    def __init__(self, folder: Path, seed: int, size: Size, tell: Callable[[str], None]) -> None:
        self._plan = plan.make(seed, size.span_s, size.acts, size.spared)
        self._seed, self._size = seed, size
        self._log = tell
        self.history = History()
        self._system = System(folder, self.history)

    async def run(self) -> History:
        """Run the chaos plan and return its history. Raises: TimeoutError: the system does not
        start or recover."""
        try:
            await self._run()
        finally:
            self._system.close()
        self.history.resumed = self._system.said("resumes after step")
        self._log(self.history.summary())
        self.history.pools_without_slots = self._system.said("slots are taken while no job runs")
        self.history.left_processes = marked(self._system.mark)
        return self.history

    async def _run(self) -> None:
        started = time.monotonic()
        await self._system.start()
        self._log(f"ready after {time.monotonic() - started:.0f} s; the plan:")
        for act in self._plan:
            self._log(str(act))
        async with self._client() as client:
            job_s = await self._learn(client)
            count = self._size.orders or round(self._size.span_s / job_s)
            self._log(
                f"learned what is expected after {time.monotonic() - started:.0f} s; "
                f"a job takes {job_s:.2f} s, so there are {count} orders"
            )
            await self._disturb(client, orders.make(self._seed, self._size.span_s, count))
            self._log(f"done with it after {time.monotonic() - started:.0f} s")
            async with Redis.from_url(self._system.server.url, decode_responses=True) as redis:
                await self._reckon(Observer(redis, client, self._system.store))
        self._log(f"reckoned after {time.monotonic() - started:.0f} s")
        await self._system.drain()
        self._log(f"ended after {time.monotonic() - started:.0f} s")

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = Client(self._system.fronts, self._system.api_keys)
        try:
            yield client
        finally:
            await client.close()

    async def _learn(self, client: Client) -> float:
        """Run every request once without actions, for the expected digests; return their mean
        seconds."""
        began = time.monotonic()
        for name, body in orders.REQUESTS.items():
            job = await client.until_done(body, next(iter(orders.TENANTS)))
            self.history.expected[name] = tuple(output["sha256"] for output in job["outputs"])
        return (time.monotonic() - began) / len(orders.REQUESTS)

    async def _disturb(self, client: Client, placed: Sequence[orders.Order]) -> None:
        started = time.monotonic()

        async def place(order: orders.Order) -> OrderResult:
            await asyncio.sleep(max(0.0, started + order.at_s - time.monotonic()))
            return await client.place(order)

        async with asyncio.TaskGroup() as group:
            acting = Actors(self._system, self._log).perform(self._plan)
            group.create_task(acting, name="acting")
            placing = [group.create_task(place(order)) for order in placed]
        self.history.results = [task.result() for task in placing]

    async def _reckon(self, observer: Observer) -> None:
        history = self.history

        async def is_clean() -> bool:
            return not (await observer.left_keys() or observer.left_files())

        await _settle(observer)
        history.unknown_keys = await observer.unknown_keys()
        await _patiently(until(observer.is_stored, STORED_S, "the ledger in the store"))
        history.jobs = await observer.jobs()
        history.ledger, history.totals = await observer.ledger(), await observer.totals()
        await observer.delete(history.jobs)
        await _patiently(until(is_clean, CLEAN_S, "nothing left"))
        history.left_keys, history.left_files = await observer.left_keys(), observer.left_files()


async def _settle(observer: Observer) -> None:
    """Wait for all jobs to end, as long as some do."""
    fewest, since = math.inf, time.monotonic()
    while left := len(await observer.unended()):
        if left < fewest:
            fewest, since = left, time.monotonic()
        if time.monotonic() - since > SETTLE_S:
            return  # the invariants report unfinished jobs
        await asyncio.sleep(LOOK_EVERY_S)


async def _patiently(waiting: Awaitable[None]) -> None:
    """Ignore a time-out; the invariants report what is missing."""
    try:
        await waiting
    except TimeoutError:
        return
