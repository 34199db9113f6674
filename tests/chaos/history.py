"""What a run has seen: answers, jobs, exits, and what was left at its end. Plain data, for the
invariants to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.jobs.model.ledger import LedgerRecord
from tests.chaos.orders import Order
from tests.chaos.plan import Kind


@dataclass(frozen=True)
class Answer:
    """To one request of a client."""

    status: int
    retry_after: str | None
    body: str

    @property
    def is_hopeless(self) -> bool:
        """Whether its deadline is shorter than the job takes alone."""
        return self.status == 422 and "deadline_too_soon" in self.body


@dataclass
class Asked:
    """What became of one order, as its client has it."""

    order: Order
    jobs: list[str] = field(default_factory=list)
    """Ids, one of each POST that was accepted."""
    answers: list[Answer] = field(default_factory=list)
    """All that told of an error."""
    gave_up: str = ""
    """Why, if it did."""
    is_deleted: bool = False
    """It was told that its job is gone."""
    continued: list[str] = field(default_factory=list)
    """Ids of the jobs that were to finish its audition: one, however often it was asked for."""


@dataclass(frozen=True)
class Told:
    """One event of a job."""

    id: int
    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """One job when all was over."""

    tenant: str
    view: dict[str, Any]
    """As the API shows it."""
    events: tuple[Told, ...]
    fence: int
    """Of its last claim."""
    settled: str
    """How that claim ended, as the queue wrote it down: fence, act, answer."""
    keys: tuple[str, ...]
    """Of its outputs, in the store."""
    digests: tuple[str, ...]
    """Of their bytes, as the API gives them."""

    @property
    def id(self) -> str:
        return str(self.view["id"])

    @property
    def state(self) -> str:
        return str(self.view["state"])

    @property
    def is_done(self) -> bool:
        return self.state in ("succeeded", "paused")

    @property
    def is_copy(self) -> bool:
        """Return whether it was given another job's files."""
        return self.view["reuses"] is not None

    @property
    def order(self) -> int | None:
        """The number of its order; None: one of the undisturbed run."""
        number = self.view["metadata"].get("order")
        return None if number is None else int(number)


@dataclass(frozen=True)
class Exit:
    """The end of one process."""

    name: str
    code: int
    asked: Kind | None
    """What was done to it; None: it ended by itself."""
    lasted_s: float
    """From there to its end."""


@dataclass
class History:
    asked: list[Asked] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By request: the digests of what it gives undisturbed."""
    exits: list[Exit] = field(default_factory=list)
    unknown_keys: list[str] = field(default_factory=list)
    """In Redis while all was at work, but in no schema."""
    left_keys: list[str] = field(default_factory=list)
    """In Redis when all jobs were deleted."""
    left_files: list[str] = field(default_factory=list)
    """In the store then."""
    resumed: int = 0
    """Images that went on from what a claim before had kept."""
    ledger: list[LedgerRecord] = field(default_factory=list)
    """Sums of its files, when all records were there."""
    totals: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """The same sums, as Redis keeps them."""
    left_processes: list[str] = field(default_factory=list)
    """When all had ended."""

    def summary(self) -> str:
        """What a run has lived through: one that saw nothing proves nothing."""
        states = Counter(job.state for job in self.seen)
        busy_s = sum(job.view["usage"]["device_seconds"] for job in self.seen)
        claims = sum(job.fence for job in self.seen)
        repeats = sum(len(asked.jobs) - 1 for asked in self.asked if asked.jobs)
        refused = Counter(answer.status for asked in self.asked for answer in asked.answers)
        lost = sum(bool(asked.gave_up) for asked in self.asked)
        copies = [job for job in self.seen if job.is_copy]
        at_once = sum(job.fence == 0 for job in copies)
        ends = Counter(
            f"{exit.name.split('-')[0]} {exit.asked or 'by itself'}" for exit in self.exits
        )
        return (
            f"{len(self.seen)} jobs {dict(states)}, {busy_s:.0f} device-seconds, {claims} claims, "
            f"{self.resumed} images went on from a snapshot; {len(copies)} were given files, "
            f"{at_once} of them at once; {repeats} accepted again, {dict(refused)} refused, "
            f"{lost} given up; {dict(ends)}; {self._balance()}"
        )

    def _balance(self) -> str:
        ends = sum(not record.is_correction for record in self.ledger)
        shares = {
            payer: sum(getattr(record, f"{payer}_seconds") for record in self.ledger)
            for payer in ("device", "tenant", "house", "lost")
        }
        return (
            f"ledger: {ends} jobs and {len(self.ledger) - ends} corrections, "
            f"{shares['device']:.1f} device-seconds, of which tenants pay {shares['tenant']:.1f} "
            f"and the house {shares['house']:.1f} ({shares['lost']:.1f} lost)"
        )
