"""Simulation of worker slots: when a job can start and end on all ready workers."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

ONE_BY_ONE = 64
"""Maximum number of preceding jobs that are assigned to slots individually. Jobs before these are
spread evenly over all slots as total work."""


@dataclass(frozen=True)
class Load:
    """Work of one job, as input of the simulation: its images, steps and predicted times."""

    device_seconds: float
    alone_s: float | None
    """Seconds that it takes alone; None: unknown."""
    images: int = 1

    def duration_s(self, slots: int, rows: int) -> float:
        """Return the job's duration on a worker with `rows` of its `slots` in use.

        On a full worker each image has an equal share of the slice. Between that and running alone,
        the duration is interpolated linearly.
        """
        full_s = self.device_seconds * slots / min(self.images, slots)
        alone_s = full_s if self.alone_s is None else self.alone_s
        if full_s <= alone_s or slots <= self.images:
            return max(full_s, alone_s)
        crowd = (min(max(rows, self.images), slots) - self.images) / (slots - self.images)
        return alone_s + (full_s - alone_s) * crowd


@dataclass(frozen=True)
class Pool:
    """Worker as input of the slot simulation."""

    name: str
    slots: int
    slowness: float = 1.0
    """Duration of jobs relative to the fastest worker."""
    layout: str = ""
    away_s: float = 0.0
    """Seconds until a job could start at all."""


@dataclass(frozen=True)
class RunningJob:
    """Running job as input of the simulation."""

    pool: str
    load: Load
    done: float
    """Completed share of its steps, from 0 to 1."""
    step_s: float = 0.0
    """Seconds of one of its steps."""
    yields_to_s: float = 0.0
    """Maximum duration of a job that may preempt it to meet a deadline."""


@dataclass(frozen=True)
class SimulatedSlot:
    """Slot of a worker, with the time at which it becomes free."""

    free_at: float
    """Seconds from now."""
    slots: int
    """Number of slots of its worker. The next two fields describe the worker, too."""
    slowness: float
    layout: str


Takes = Callable[[float, str], bool]
"""Predicate: whether a slot that is free in this many seconds, on this layout, may take a job."""


class SlotSimulation:
    """Slots of several workers, with their running jobs simulated until their ends.

    Args:
        is_crowded: True if other jobs wait, so that free slots are filled.
    """

    def __init__(
        self, pools: Sequence[Pool], running: Iterable[RunningJob], is_crowded: bool
    ) -> None:
        by_pool: defaultdict[str, list[RunningJob]] = defaultdict(list)
        for job in running:
            by_pool[job.pool].append(job)
        self._pools = pools
        self.busy = {pool.name: sum(r.load.images for r in by_pool[pool.name]) for pool in pools}
        slots = [slot for pool in pools for slot in _slots(pool, by_pool[pool.name], is_crowded)]
        self._slots = sorted(slots, key=lambda slot: slot.free_at)
        self._levels, self._speeds = _levels(self._slots)

    def start(
        self, jobs: float, mean_s: float, takes: Takes | None = None
    ) -> tuple[float, SimulatedSlot] | None:
        """Return the start of a job after `jobs` others, and its slot; None: there is no slot.

        Args:
            mean_s: mean device-seconds of the others.
            takes: restricts the slots for the job; None: any. If no slot qualifies, the first free
                one is returned.
        """
        if not self._slots:
            return None
        # The slots that become free first suffice; they are sorted.
        nearest = self._slots[: min(round(jobs), ONE_BY_ONE) + 1]
        heap, level = self._assign(jobs, mean_s, nearest)
        first = (heap[0][0], nearest[heap[0][1]])
        if takes is None:
            return first
        free = [(at, nearest[number]) for at, number in heap]
        free += [(max(slot.free_at, level), slot) for slot in self._slots[len(heap) :]]
        taking = [(at, slot) for at, slot in free if takes(at, slot.layout)]
        return min(taking, key=itemgetter(0), default=first)

    def starts(self, device_seconds: Iterable[float]) -> Iterator[float]:
        """Yield the start of each of these jobs, assigned to the slots in order."""
        heap = [(slot.free_at, number, slot) for number, slot in enumerate(self._slots)]
        for seconds in device_seconds if heap else ():
            at, number, slot = heap[0]
            heapq.heapreplace(heap, (at + _duration_s(seconds, slot), number, slot))
            yield at

    def drain_wait_s(self, jobs: float, mean_s: float, left: int) -> float:
        """Return the seconds until at most `left` of the running and waiting images remain.

        Args:
            jobs, mean_s: the waiting jobs, as in `start`.
        """
        heap, _ = self._assign(jobs, mean_s, self._slots)
        ends = sorted((at for at, _ in heap), reverse=True)
        return ends[left] if left < len(ends) else 0.0

    def _assign(
        self, jobs: float, mean_s: float, slots: Sequence[SimulatedSlot]
    ) -> tuple[list[tuple[float, int]], float]:
        """Return when each slot is free after `jobs` waiting jobs were assigned.

        Returns: a heap of (time, slot number), and the time up to which the evenly spread work
        fills the slots.
        """
        count = min(round(jobs), ONE_BY_ONE)
        level = self._level((round(jobs) - count) * mean_s)
        heap = [(max(slot.free_at, level), n) for n, slot in enumerate(slots)]
        heapq.heapify(heap)
        lasts = [_duration_s(mean_s, slot) for slot in slots]
        for _ in range(count):
            at, number = heap[0]
            heapq.heapreplace(heap, (at + lasts[number], number))
        return heap, level

    def _level(self, device_seconds: float) -> float:
        """Return the time up to which that many device-seconds fill all slots."""
        if device_seconds <= 0:
            return 0.0
        taking_part = bisect_right(self._levels, device_seconds)
        left = device_seconds - self._levels[taking_part - 1]
        return self._slots[taking_part - 1].free_at + left / self._speeds[taking_part - 1]

    def rows(self, waiting: float) -> int:
        """Return the maximum number of used slots per worker once all waiting jobs are assigned."""
        return math.ceil((sum(self.busy.values()) + waiting) / max(1, len(self._pools)))


def _duration_s(device_seconds: float, slot: SimulatedSlot) -> float:
    """Return the duration of that many device-seconds in a slot of a full worker."""
    return device_seconds * slot.slots * slot.slowness


def _slots(pool: Pool, running: Sequence[RunningJob], is_crowded: bool) -> list[SimulatedSlot]:
    """Return a worker's slots after its running jobs, assigned in order of progress.

    Jobs that the worker has claimed beyond its slots follow in the slots that become free first.
    """
    rows = pool.slots if is_crowded else sum(job.load.images for job in running)
    left = [
        (1 - job.done) * job.load.duration_s(pool.slots, rows) * pool.slowness
        for job in sorted(running, key=lambda job: -job.done)
        for _ in range(job.load.images)
    ]
    ends = [pool.away_s] * pool.slots
    for seconds in left:
        heapq.heapreplace(ends, ends[0] + seconds)
    return [SimulatedSlot(end, pool.slots, pool.slowness, pool.layout) for end in ends]


def _levels(slots: Sequence[SimulatedSlot]) -> tuple[list[float], list[float]]:
    """Return the filling levels and speeds of a simulation's slots, sorted by free time.

    The level of a slot is the work that fills the slots before it until it becomes free. Its speed
    is the device-seconds per second of this slot and those before it.
    """
    levels, speeds = [], []
    filled, speed, at = 0.0, 0.0, 0.0
    for slot in slots:
        filled += speed * (slot.free_at - at)
        speed += 1 / _duration_s(1.0, slot)
        at = slot.free_at
        levels.append(filled)
        speeds.append(speed)
    return levels, speeds


def remaining_s(
    load: Load, done: float, decode_s: float, pool: Pool, rows: Mapping[str, int]
) -> float:
    """Return the seconds until a running job ends: its remaining steps, and its decoding."""
    taken = rows.get(pool.name, load.images)
    all_s = load.duration_s(pool.slots, taken) * pool.slowness
    tail_s = min(all_s, decode_s * pool.slowness)
    beyond = max(1.0, taken / pool.slots)
    return (all_s - tail_s) * (1 - done) * beyond + tail_s
