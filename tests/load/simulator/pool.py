"""A pool that takes the planner's times: rows step by turns, those of one shape together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.load.simulator.times import Times
from workers.pool.capacity import JOBS_A_SLOT, LEAVING_STEPS

ENCODE, STEP, DECODE, DONE = "encode", "step", "decode", "done"


@dataclass(frozen=True)
class Ask:
    """A request of the trace."""

    number: int
    at_s: float
    queue: str
    """Model whose pools serve it."""
    shape: str
    times: Times
    tenant: str
    weight: float
    deadline_s: float
    """After it was asked for."""
    is_video: bool

    @property
    def deadline_at(self) -> float:
        """Instant in the trace's time."""
        return self.at_s + self.deadline_s


@dataclass(eq=False)
class Row:
    """A request on a pool."""

    ask: Ask
    hold: Any = None
    """Claim, as the scheduler knows it."""
    done: int = 0
    """Steps."""
    stage: str = ENCODE
    ticket: int = 0
    began_at: float = 0.0
    told: int = -1
    """Steps that the queue was told of."""
    yields: bool = False
    """True if it is put aside when its step ends."""
    is_dropped: bool = False
    pool: Pool | None = None
    """Place where it is; None: in the queue, or gone."""

    @property
    def left_s(self) -> float:
        """Seconds of the steps that are left, alone."""
        return (self.ask.times.steps - self.done) * self.ask.times.step_s[0]

    @property
    def rest_s(self) -> float:
        """Seconds until it would be done, alone."""
        return self.left_s + self.ask.times.decode_s

    @property
    def has_place(self) -> bool:
        """Return whether it keeps another one out, as `workers.pool.capacity` counts."""
        return self.ask.times.steps - self.done > LEAVING_STEPS

    def advance(self) -> None:
        """One unit of its work has ended."""
        if self.stage == ENCODE:
            self.stage = STEP
        elif self.stage == DECODE:
            self.stage = DONE
        else:
            self.done += 1
            self.stage = DECODE if self.done == self.ask.times.steps else STEP


@dataclass(eq=False)
class Pool:
    """One slice with so many slots."""

    name: str
    queue: str
    slots: int
    rows: list[Row] = field(default_factory=list)
    at_work: tuple[Row, ...] = ()
    """Rows of the step under way."""
    ends_at: float = 0.0
    """End of that step."""
    worked_s: float = 0.0
    _tickets: count[int] = field(default_factory=count)

    @property
    def free(self) -> int:
        """Images that it may claim now."""
        if len(self.rows) >= JOBS_A_SLOT * self.slots:
            return 0
        return self.slots - sum(row.has_place for row in self.rows)

    @property
    def is_full(self) -> bool:
        return self.free <= 0 and len(self.rows) < JOBS_A_SLOT * self.slots

    def add(self, row: Row, now: float) -> None:
        row.began_at, row.ticket, row.pool = now, next(self._tickets), self
        self.rows.append(row)

    def begin(self, now: float) -> bool:
        """Begin the next step, of the row that has waited longest, with those of its shape."""
        seated = [row for row in self.rows if row.stage == STEP][: self.slots]
        ready = [row for row in self.rows if row.stage != STEP or row in seated]
        if not ready:
            return False
        first = min(ready, key=lambda row: row.ticket)
        times = first.ask.times
        if first.stage == STEP:
            company = [row for row in seated if row.ask.shape == first.ask.shape]
            company.sort(key=lambda row: row.ticket)
            size = best_size(times.step_s, len(company))
            self.at_work, lasts_s = tuple(company[:size]), times.step_s[size - 1]
        else:
            self.at_work = (first,)
            lasts_s = times.encode_s if first.stage == ENCODE else times.decode_s
        self.ends_at = now + lasts_s
        self.worked_s += lasts_s
        return True

    def end(self) -> list[Row]:
        """The step has ended; return the rows that leave: done, dropped or put aside."""
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
    """Return how many of these rows step together with the least time a row."""
    sizes = range(1, min(rows, len(step_s)) + 1)
    return min(sizes, key=lambda size: (step_s[size - 1] / size, size))
