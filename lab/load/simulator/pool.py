"""Simulated pool with the planner's times: rows take turns by step, those of one shape together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from lab.load.simulator.times import Times
from workers.pool.capacity import JOBS_A_SLOT, LEAVING_STEPS

ENCODE, STEP, DECODE, DONE = "encode", "step", "decode", "done"


@dataclass(frozen=True)
class SimulatedRequest:
    """A request of the trace."""

    number: int
    at_s: float
    queue: str
    """Name of the queue; its pools serve the request."""
    shape: str
    times: Times
    tenant: str
    weight: float
    deadline_s: float
    """Seconds after the arrival."""
    is_video: bool

    @property
    def deadline_at(self) -> float:
        """Deadline in the trace's time."""
        return self.at_s + self.deadline_s


@dataclass(eq=False)
class Row:
    """A request on a pool."""

    request: SimulatedRequest
    hold: Any = None
    """The scheduler's claim."""
    done: int = 0
    """Number of finished steps."""
    stage: str = ENCODE
    ticket: int = 0
    began_at: float = 0.0
    reported: int = -1
    """Steps reported to the queue."""
    yields: bool = False
    """Whether it is preempted when its step ends."""
    is_dropped: bool = False
    pool: Pool | None = None
    """The row's pool; None: queued or gone."""

    @property
    def left_s(self) -> float:
        """Seconds of the remaining steps, alone."""
        return (self.request.times.steps - self.done) * self.request.times.step_s[0]

    @property
    def rest_s(self) -> float:
        """Seconds until it would be done, alone."""
        return self.left_s + self.request.times.decode_s

    @property
    def has_slot(self) -> bool:
        """Whether it occupies a slot, as `workers.pool.capacity` counts."""
        return self.request.times.steps - self.done > LEAVING_STEPS

    def advance(self) -> None:
        """Advance by one finished unit of work."""
        if self.stage == ENCODE:
            self.stage = STEP
        elif self.stage == DECODE:
            self.stage = DONE
        else:
            self.done += 1
            self.stage = DECODE if self.done == self.request.times.steps else STEP


@dataclass(eq=False)
class Pool:
    """A mesh slice with `slots` slots."""

    name: str
    queue: str
    slots: int
    rows: list[Row] = field(default_factory=list)
    at_work: tuple[Row, ...] = ()
    """Rows of the running step."""
    ends_at: float = 0.0
    """End of the running step."""
    _tickets: count[int] = field(default_factory=count)

    @property
    def free(self) -> int:
        """Number of images that it may claim."""
        if len(self.rows) >= JOBS_A_SLOT * self.slots:
            return 0
        return self.slots - sum(row.has_slot for row in self.rows)

    @property
    def is_full(self) -> bool:
        return self.free <= 0 and len(self.rows) < JOBS_A_SLOT * self.slots

    def add(self, row: Row, now: float) -> None:
        row.began_at, row.ticket, row.pool = now, next(self._tickets), self
        self.rows.append(row)

    def begin(self, now: float) -> bool:
        """Start the next step: the row that waited longest, with rows of its shape."""
        stepping = [row for row in self.rows if row.stage == STEP][: self.slots]
        ready = [row for row in self.rows if row.stage != STEP or row in stepping]
        if not ready:
            return False
        first = min(ready, key=lambda row: row.ticket)
        times = first.request.times
        if first.stage == STEP:
            same_shape = [row for row in stepping if row.request.shape == first.request.shape]
            same_shape.sort(key=lambda row: row.ticket)
            size = best_size(times.step_s, len(same_shape))
            self.at_work, duration_s = tuple(same_shape[:size]), times.step_s[size - 1]
        else:
            self.at_work = (first,)
            duration_s = times.encode_s if first.stage == ENCODE else times.decode_s
        self.ends_at = now + duration_s
        return True

    def end(self) -> list[Row]:
        """End the step; return the rows that leave: done, dropped or preempted."""
        for row in self.at_work:
            row.advance()
            row.ticket = next(self._tickets)
        self.at_work = ()
        left = [row for row in self.rows if row.is_dropped or row.stage == DONE or self._goes(row)]
        for row in left:
            self.rows.remove(row)
            row.pool = None
        return left

    def _goes(self, row: Row) -> bool:
        return row.yields and row.stage in (ENCODE, STEP)


def best_size(step_s: Sequence[float], rows: int) -> int:
    """Return the batch size of these rows with the least time per row."""
    sizes = range(1, min(rows, len(step_s)) + 1)
    return min(sizes, key=lambda size: (step_s[size - 1] / size, size))
