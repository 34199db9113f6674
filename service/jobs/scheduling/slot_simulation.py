"""Simulation of slots: when a job can start and end on all ready pools."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

ONE_BY_ONE = 64
"""Jobs ahead that are dealt to the slots one by one; what is before these is poured over them."""


@dataclass(frozen=True)
class Load:
    """Work of one job for a pool."""

    device_seconds: float
    alone_s: float | None
    """Seconds it takes alone; None: unknown."""
    images: int = 1

    def lasts(self, slots: int, rows: int) -> float:
        """Seconds on a pool of so many slots with so many of them taken.

        In a full one each image has an even share of the slice; between that and the slice for
        itself it goes in proportion.
        """
        full_s = self.device_seconds * slots / min(self.images, slots)
        alone_s = full_s if self.alone_s is None else self.alone_s
        if full_s <= alone_s or slots <= self.images:
            return max(full_s, alone_s)
        crowd = (min(max(rows, self.images), slots) - self.images) / (slots - self.images)
        return alone_s + (full_s - alone_s) * crowd


@dataclass(frozen=True)
class Pool:
    """A pool, as the simulation sees it."""

    name: str
    slots: int
    slowness: float = 1.0
    """Duration relative to the fastest pool."""
    layout: str = ""
    away_s: float = 0.0
    """Seconds until a job could begin at all."""


@dataclass(frozen=True)
class Running:
    """A running job, as the simulation sees it."""

    pool: str
    load: Load
    done: float
    """Share of its steps, from 0 to 1."""
    step_s: float = 0.0
    """Seconds of one of its steps."""
    yields_to_s: float = 0.0
    """Duration up to which a job that would miss its deadline preempts it."""


@dataclass(frozen=True)
class SimulatedSlot:
    """Slot of a pool."""

    free_at: float
    """Seconds from now."""
    slots: int
    """Number of slots of its pool; the next two are of its pool, too."""
    slowness: float
    layout: str


Takes = Callable[[float, str], bool]
"""Predicate: whether a slot free in so many seconds, of a pool of that layout, takes a job."""


class SlotSimulation:
    """Simulated slots, with what runs on them until its end.

    Args:
        is_crowded: others wait, so that what becomes free is taken.
    """

    def __init__(self, pools: Sequence[Pool], running: Iterable[Running], is_crowded: bool) -> None:
        by_pool: defaultdict[str, list[Running]] = defaultdict(list)
        for one in running:
            by_pool[one.pool].append(one)
        self._pools = pools
        self.busy = {pool.name: sum(r.load.images for r in by_pool[pool.name]) for pool in pools}
        slots = [
            server for pool in pools for server in _slots(pool, by_pool[pool.name], is_crowded)
        ]
        self._slots = sorted(slots, key=lambda server: server.free_at)
        self._levels, self._speeds = _levels(self._slots)

    def start(
        self, jobs: float, mean_s: float, takes: Takes | None = None
    ) -> tuple[float, SimulatedSlot] | None:
        """Return when and where a job starts behind so many others; None: there is no slot.

        Args:
            mean_s: device-seconds of one of those.
            takes: left out, any slot does; where none does, the first to be free counts.
        """
        if not self._slots:
            return None
        # The first to become free are enough, and in order.
        nearest = self._slots[: min(round(jobs), ONE_BY_ONE) + 1]
        heap, level = self._dealt(jobs, mean_s, nearest)
        first = (heap[0][0], nearest[heap[0][1]])
        if takes is None:
            return first
        free = [(at, nearest[number]) for at, number in heap]
        free += [(max(server.free_at, level), server) for server in self._slots[len(heap) :]]
        taking = [(at, server) for at, server in free if takes(at, server.layout)]
        return min(taking, key=itemgetter(0), default=first)

    def starts(self, device_seconds: Iterable[float]) -> Iterator[float]:
        """Yield when each of these jobs starts, dealt to the slots in their order."""
        heap = [(slot.free_at, number, slot) for number, slot in enumerate(self._slots)]
        for seconds in device_seconds if heap else ():
            at, number, slot = heap[0]
            heapq.heapreplace(heap, (at + _lasts(seconds, slot), number, slot))
            yield at

    def thinned_s(self, jobs: float, mean_s: float, left: int) -> float:
        """Seconds until no more images than that are left of what runs and waits.

        Args:
            jobs, mean_s: those that wait, as of `start`.
        """
        heap, _ = self._dealt(jobs, mean_s, self._slots)
        ends = sorted((at for at, _ in heap), reverse=True)
        return ends[left] if left < len(ends) else 0.0

    def _dealt(
        self, jobs: float, mean_s: float, slots: Sequence[SimulatedSlot]
    ) -> tuple[list[tuple[float, int]], float]:
        """Return when slots are free with so many jobs on them.

        As a heap of time and the slot's number; and to where all slots are filled by those that are
        poured.
        """
        count = min(round(jobs), ONE_BY_ONE)
        level = self._level((round(jobs) - count) * mean_s)
        heap = [(max(server.free_at, level), n) for n, server in enumerate(slots)]
        heapq.heapify(heap)
        lasts = [_lasts(mean_s, server) for server in slots]
        for _ in range(count):
            at, number = heap[0]
            heapq.heapreplace(heap, (at + lasts[number], number))
        return heap, level

    def _level(self, device_seconds: float) -> float:
        """Return the time to which so much work fills the slots."""
        if device_seconds <= 0:
            return 0.0
        taking_part = bisect_right(self._levels, device_seconds)
        left = device_seconds - self._levels[taking_part - 1]
        return self._slots[taking_part - 1].free_at + left / self._speeds[taking_part - 1]

    def rows(self, waiting: float) -> int:
        """Taken slots of a pool when all who wait have been dealt out, at the most."""
        return math.ceil((sum(self.busy.values()) + waiting) / max(1, len(self._pools)))


def _lasts(device_seconds: float, server: SimulatedSlot) -> float:
    return device_seconds * server.slots * server.slowness


def _slots(pool: Pool, running: Sequence[Running], is_crowded: bool) -> list[SimulatedSlot]:
    """The furthest first; what a pool has claimed beyond its slots follows in those."""
    rows = pool.slots if is_crowded else sum(one.load.images for one in running)
    left = [
        (1 - one.done) * one.load.lasts(pool.slots, rows) * pool.slowness
        for one in sorted(running, key=lambda one: -one.done)
        for _ in range(one.load.images)
    ]
    ends = [pool.away_s] * pool.slots
    for seconds in left:
        heapq.heapreplace(ends, ends[0] + seconds)
    return [SimulatedSlot(end, pool.slots, pool.slowness, pool.layout) for end in ends]


def _levels(slots: Sequence[SimulatedSlot]) -> tuple[list[float], list[float]]:
    """Return the filling levels of the slots, in order.

    For each, the work that fills those before it up to where it becomes free, and device-seconds a
    second of it and those before it.
    """
    levels, speeds = [], []
    filled, speed, at = 0.0, 0.0, 0.0
    for server in slots:
        filled += speed * (server.free_at - at)
        speed += 1 / _lasts(1.0, server)
        at = server.free_at
        levels.append(filled)
        speeds.append(speed)
    return levels, speeds


def remaining_s(
    load: Load, done: float, decode_s: float, pool: Pool, rows: Mapping[str, int]
) -> float:
    """Seconds until a running job ends: what is left of its steps, and its decoding."""
    taken = rows.get(pool.name, load.images)
    all_s = load.lasts(pool.slots, taken) * pool.slowness
    tail_s = min(all_s, decode_s * pool.slowness)
    beyond = max(1.0, taken / pool.slots)
    return (all_s - tail_s) * (1 - done) * beyond + tail_s
