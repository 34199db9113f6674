"""A whole run: an undisturbed part, which says what is expected; chaos; and the reckoning."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from tests.chaos import orders, plan
from tests.chaos.actors import Actors
from tests.chaos.clients import Client
from tests.chaos.history import Asked, History
from tests.chaos.observer import Observer
from tests.chaos.processes import LOOK_EVERY_S, marked, until
from tests.chaos.system import DEPOSIT_S, LEDGER_EVERY_S, System

SETTLE_S = 240.0
"""In which some job has to end, as long as there are any, when nothing is done to the system any
more: they share two cores with whatever else runs there."""
STORED_S = LEDGER_EVERY_S + 60.0
"""Until the ledger's last record is in a file."""
CLEAN_S = DEPOSIT_S + 40.0
"""Until nothing is left of jobs that are deleted or never were: some rounds of the front ends'
brooms."""


@dataclass(frozen=True)
class Size:
    """Of a run."""

    span_s: float
    """In which jobs come and things happen."""
    acts: int
    orders: int
    spared: tuple[str, ...] = ()
    """Processes to which nothing is done."""


class Run:
    """Args: tell: a line of what happens."""

    def __init__(self, folder: Path, seed: int, size: Size, tell: Callable[[str], None]) -> None:
        self._plan = plan.make(seed, size.span_s, size.acts, size.spared)
        self._orders = orders.make(seed, size.span_s, size.orders)
        self._tell = tell
        self.history = History()
        self._system = System(folder, self.history)

    async def run(self) -> History:
        """Raises: TimeoutError: the system does not start, or something never comes back."""
        try:
            await self._run()
        finally:
            self._system.close()
        self.history.resumed = self._system.said("goes on after step")
        self._tell(self.history.summary())
        self.history.left_processes = marked(self._system.mark)
        return self.history

    async def _run(self) -> None:
        began = time.monotonic()
        await self._system.start()
        self._tell(f"ready after {time.monotonic() - began:.0f} s; the plan:")
        for act in self._plan:
            self._tell(str(act))
        async with self._client() as client:
            await self._learn(client)
            self._tell(f"learned what is expected after {time.monotonic() - began:.0f} s")
            await self._disturb(client)
            self._tell(f"done with it after {time.monotonic() - began:.0f} s")
            async with Redis.from_url(self._system.server.url, decode_responses=True) as redis:
                await self._reckon(Observer(redis, client, self._system.store))
        self._tell(f"reckoned after {time.monotonic() - began:.0f} s")
        await self._system.drain()
        self._tell(f"ended after {time.monotonic() - began:.0f} s")

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = Client(self._system.fronts, self._system.api_keys)
        try:
            yield client
        finally:
            await client.close()

    async def _learn(self, client: Client) -> None:
        """Every request once, alone, while nobody is disturbed."""
        for name, body in orders.REQUESTS.items():
            job = await client.until_done(body, next(iter(orders.TENANTS)))
            self.history.expected[name] = tuple(one["sha256"] for one in job["outputs"])

    async def _disturb(self, client: Client) -> None:
        began = time.monotonic()

        async def place(order: orders.Order) -> Asked:
            await asyncio.sleep(max(0.0, began + order.at_s - time.monotonic()))
            return await client.place(order)

        async with asyncio.TaskGroup() as group:
            acting = Actors(self._system, self._tell).perform(self._plan)
            group.create_task(acting, name="acting")
            placing = [group.create_task(place(order)) for order in self._orders]
        self.history.asked = [task.result() for task in placing]

    async def _reckon(self, observer: Observer) -> None:
        history = self.history

        async def is_clean() -> bool:
            return not (await observer.left_keys() or observer.left_files())

        await _settle(observer)
        history.unknown_keys = await observer.unknown_keys()
        await _patiently(until(observer.is_stored, STORED_S, "the ledger in the store"))
        history.seen = await observer.jobs()
        history.ledger, history.totals = await observer.ledger(), await observer.totals()
        await observer.delete(history.seen)
        await _patiently(until(is_clean, CLEAN_S, "nothing left"))
        history.left_keys, history.left_files = await observer.left_keys(), observer.left_files()


async def _settle(observer: Observer) -> None:
    """Wait for the end of all jobs, for as long as some of them do end."""
    fewest, since = math.inf, time.monotonic()
    while left := len(await observer.unended()):
        if left < fewest:
            fewest, since = left, time.monotonic()
        if time.monotonic() - since > SETTLE_S:
            return  # what does not end is for the invariants to tell
        await asyncio.sleep(LOOK_EVERY_S)


async def _patiently(waiting: Awaitable[None]) -> None:
    """What does not come in time is for the invariants to tell."""
    try:
        await waiting
    except TimeoutError:
        return
