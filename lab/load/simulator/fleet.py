"""Event-driven fleet of simulated pools."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count

from lab.load.simulator.clock import EPOCH_S, Clock
from lab.load.simulator.pool import DONE, Pool, Row, SimulatedRequest
from lab.load.simulator.schedulers import Scheduler
from workers.pool.preemption import REQUEST_EVERY_S

TICK_S = 2.0
INSTANT_S = 0.001
Act = Callable[[], Awaitable[None]]


@dataclass
class Outcome:
    """Outcome of a request."""

    request: SimulatedRequest
    is_admitted: bool = False
    began_at: float | None = None
    """Time of the first start."""
    ended_at: float | None = None
    preemptions: int = 0

    @property
    def in_time(self) -> bool:
        return self.ended_at is not None and self.ended_at <= self.request.deadline_at


class Fleet:
    """Pools, their scheduler, and the scheduled events."""

    def __init__(self, pools: Sequence[Pool], scheduler: Scheduler, clock: Clock) -> None:
        self._pools = pools
        self._scheduler = scheduler
        self._clock = clock
        self._outcomes: dict[int, Outcome] = {}
        self._events: list[tuple[float, int, Act]] = []
        self._order = count()
        self._now = 0.0
        self._free: defaultdict[str, dict[Pool, None]] = defaultdict(dict)
        """Pools with free slots, by queue."""
        self._is_over = False

    async def run(
        self, requests: Sequence[SimulatedRequest], patience_s: float = math.inf
    ) -> list[Outcome]:
        """Serve a trace; requests not done within `patience_s` after its last request stay
        unfinished."""
        await self._scheduler.begin(
            self._pools, {arrival.shape: arrival for arrival in requests}.values()
        )
        for arrival in requests:
            self._at(arrival.at_s, lambda arrival=arrival: self._arrive(arrival))
        for number, pool in enumerate(self._pools):
            self._free[pool.queue][pool] = None
            self._at(number / len(self._pools), lambda pool=pool: self._request(pool))
        self._at(requests[-1].at_s, self._tick_when_all_came(patience_s))
        self._at(0.0, self._tick)
        while not self._is_over:
            self._now, _, act = heapq.heappop(self._events)
            self._clock.now = EPOCH_S + self._now
            await act()
        return [self._outcomes[arrival.number] for arrival in requests]

    def _tick_when_all_came(self, patience_s: float) -> Act:
        """Check periodically, from now on, whether all is done."""
        until = self._now + patience_s

        async def check() -> None:
            is_idle = not any(pool.rows for pool in self._pools)
            self._is_over = is_idle or self._now > until
            self._at(self._now + TICK_S, check)

        return check

    def _at(self, at: float, act: Act) -> None:
        heapq.heappush(self._events, (at, next(self._order), act))

    async def _arrive(self, arrival: SimulatedRequest) -> None:
        outcome = self._outcomes[arrival.number] = Outcome(arrival)
        outcome.is_admitted = await self._scheduler.put(arrival)
        if outcome.is_admitted:
            await self._wake(arrival.queue)
        if outcome.is_admitted and outcome.began_at is None:
            row = await self._scheduler.make_room_for(arrival, self._pools)
            if row:
                row.yields = True

    async def _wake(self, queue: str) -> None:
        """Let pools with free slots claim from this queue, least loaded first."""
        free = self._free[queue]
        while free:
            pool = min(free, key=lambda pool: len(pool.rows) / pool.slots)
            if not await self._claim(pool):
                break

    async def _claim(self, pool: Pool) -> bool:
        rows = await self._scheduler.claim(pool) if pool.free > 0 else []
        for row in rows:
            pool.add(row, self._now)
            outcome = self._outcomes[row.request.number]
            if outcome.began_at is None:
                outcome.began_at = self._now
            self._at(row.request.deadline_at + INSTANT_S, lambda row=row: self._expire(row))
        self._continue(pool)
        return bool(rows)

    def _continue(self, pool: Pool) -> None:
        if not pool.at_work and pool.begin(self._now):
            self._at(pool.ends_at, lambda: self._end(pool))
        if pool.free > 0:
            self._free[pool.queue][pool] = None
        else:
            self._free[pool.queue].pop(pool, None)

    async def _end(self, pool: Pool) -> None:
        was_preempted = False
        for row in pool.end():
            if row.stage == DONE:
                await self._scheduler.finish(row)
                self._outcomes[row.request.number].ended_at = self._now
            elif not row.is_dropped:
                was_preempted = True
                self._outcomes[row.request.number].preemptions += 1
                await self._scheduler.requeue(row)
        while pool.free > 0 and await self._claim(pool):
            pass
        self._continue(pool)
        if was_preempted:
            await self._wake(pool.queue)

    async def _expire(self, row: Row) -> None:
        pool = row.pool
        if row.is_dropped or not pool or not await self._scheduler.is_expired(row):
            return
        row.is_dropped = True
        if row not in pool.at_work:
            pool.rows.remove(row)
            row.pool = None
            await self._claim(pool)

    async def _request(self, pool: Pool) -> None:
        self._at(self._now + REQUEST_EVERY_S, lambda: self._request(pool))
        if pool.is_full and (row := await self._scheduler.make_room(pool)):
            row.yields = True

    async def _tick(self) -> None:
        self._at(self._now + TICK_S, self._tick)
        await self._scheduler.tick(self._now)
