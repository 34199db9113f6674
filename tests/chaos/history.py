"""Record of a run for the invariants: answers, jobs, exits and leftovers, as plain data."""

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
    """An error response to a client's request."""

    status: int
    retry_after: str | None
    body: str

    @property
    def is_hopeless(self) -> bool:
        """Whether the deadline is shorter than the job's duration alone."""
        return self.status == 422 and "deadline_too_soon" in self.body


@dataclass
class OrderResult:
    """Result of an order, as its client observed it."""

    order: Order
    jobs: list[str] = field(default_factory=list)
    """Job ids, one of each accepted POST."""
    answers: list[Answer] = field(default_factory=list)
    """All error responses."""
    gave_up: str = ""
    """Reason for giving up, if the client did."""
    is_deleted: bool = False
    """Whether the client received the answer that the job is gone."""
    continued: list[str] = field(default_factory=list)
    """Ids of jobs that continue the audition; a single id, however often requested."""
    verdicts: list[str] = field(default_factory=list)
    """Verdict on the job's output if the client had it verified."""


@dataclass(frozen=True)
class JobEvent:
    """An event of a job."""

    id: int
    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class JobRecord:
    """A job after the run."""

    tenant: str
    view: dict[str, Any]
    """The job in the API."""
    events: tuple[JobEvent, ...]
    fence: int
    """Fence of the last claim."""
    settled: str
    """Outcome of the last claim in the queue's record: fence, call, response."""
    keys: tuple[str, ...]
    """Store keys of the outputs."""
    digests: tuple[str, ...]
    """Digests of the outputs' bytes, fetched through the API."""

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
        """Whether the job reused another job's files."""
        return self.view["reuses"] is not None

    @property
    def order(self) -> int | None:
        """Number of the order; None for jobs of the undisturbed run and of verifications."""
        number = self.view["metadata"].get("order")
        return None if number is None else int(number)


@dataclass(frozen=True)
class Exit:
    """Exit of a process."""

    name: str
    code: int
    act: Kind | None
    """Action that ended the process, such as a kill; None if it exited by itself."""
    lasted_s: float
    """Seconds from the action to the exit."""


@dataclass
class History:
    results: list[OrderResult] = field(default_factory=list)
    jobs: list[JobRecord] = field(default_factory=list)
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Digests of undisturbed outputs by request."""
    exits: list[Exit] = field(default_factory=list)
    unknown_keys: list[str] = field(default_factory=list)
    """Redis keys seen during the run that are in no schema."""
    left_keys: list[str] = field(default_factory=list)
    """Redis keys left after all jobs were deleted."""
    left_files: list[str] = field(default_factory=list)
    """Files in the store left after all jobs were deleted."""
    resumed: int = 0
    """Number of images that resumed from an earlier claim's snapshot."""
    ledger: list[LedgerRecord] = field(default_factory=list)
    """Records of the ledger's files."""
    totals: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Sums of the records, as stored in Redis."""
    pools_without_slots: int = 0
    """Number of pools that ended because slots were taken while no job ran."""
    left_processes: list[str] = field(default_factory=list)
    """Processes left after the system ended."""

    def summary(self) -> str:
        """Summarize what happened; a run in which little happened proves nothing."""
        states = Counter(job.state for job in self.jobs)
        busy_s = sum(job.view["usage"]["device_seconds"] for job in self.jobs)
        claims = sum(job.fence for job in self.jobs)
        repeats = sum(len(order.jobs) - 1 for order in self.results if order.jobs)
        refused = Counter(answer.status for order in self.results for answer in order.answers)
        lost = sum(bool(order.gave_up) for order in self.results)
        verdicts = Counter(verdict for order in self.results for verdict in order.verdicts)
        copies = [job for job in self.jobs if job.is_copy]
        at_once = sum(job.fence == 0 for job in copies)
        ends = Counter(
            f"{exit.name.split('-')[0]} {exit.act or 'by itself'}" for exit in self.exits
        )
        return (
            f"{len(self.jobs)} jobs {dict(states)}, {busy_s:.0f} device-seconds, {claims} claims, "
            f"{self.resumed} images went on from a snapshot; {len(copies)} were given files, "
            f"{at_once} of them at once; {repeats} accepted again, {dict(refused)} refused, "
            f"{lost} given up; verified: {dict(verdicts)}; {dict(ends)}; {self._balance()}"
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
