"""Scripts that pools run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.jobs.model import serialization
from service.jobs.model.job import JobState, Stage
from service.jobs.model.ledger import Delivered, Origin
from service.jobs.model.preemption import FullPool
from service.jobs.scheduling.cost_model import PoolFacts
from service.jobs.scripts.script import TEXT, IfHeld, OfClaim, Script, Silent


class Spent(NamedTuple):
    """Device-seconds that one claim has taken by now."""

    device_s: float
    """Device-seconds, compiling included."""
    compile_s: float


Lease = tuple[str, int] | tuple[str, int, Spent]
"""A claim's job, its fence, and what it has taken if that is known."""


class Claimed(NamedTuple):
    """Jobs that a claim took."""

    jobs: list[dict[str, str]]
    """Hashes, with the fields that only the scripts use."""
    is_newer_there: bool
    """True if a job of a newer wire version came up."""


class MakesRoom(NamedTuple):
    """Preemption that a full pool should carry out."""

    put_aside: str
    """Id of the job that it should release."""
    waiting: str
    """Id of the job that its next claim takes then."""


class Failed(NamedTuple):
    """State of a job after a failed attempt."""

    state: JobState
    finished_at: float | None
    """Time of its end; None: it may be tried again."""


@dataclass(frozen=True)
class Register(Silent):
    """Register a pool, or renew its heartbeat."""

    pool: str
    model: str
    ready: bool
    fresh_s: float
    """Lifetime of the heartbeat."""
    facts: PoolFacts | None
    spec: str = field(metadata=TEXT)
    """The model's, as JSON."""


@dataclass(frozen=True)
class Unregister(Silent):
    """Remove a pool."""

    pool: str
    model: str


@dataclass(frozen=True)
class Measured(Silent):
    """Record what a pool has measured."""

    model: str
    rows: Sequence[tuple[str, Mapping[str, float | None]]]
    """Rows to store: key in the table, and fields."""
    max_rows: int
    """Rows that are kept; the oldest leave."""


@dataclass(frozen=True)
class ClaimJobs(Script[Claimed]):
    """Claim jobs for a pool. The last three are set anew for each try."""

    pool: str
    model: str
    slots: int
    version: int
    """Newest wire version that the pool reads."""
    lease_s: float
    warm: Sequence[str]
    """Buckets that the pool has compiled."""
    rides_wait: bool
    """Take a job of another bucket alone."""
    warm_s: float
    """Wait of a job of another bucket for a pool that has its own."""
    adapters: Sequence[str]
    """Digests of the adapters that the pool's device has."""
    slowness: float
    """Time that a job takes here, over that on the fastest pool."""
    slowness_in: Mapping[str, float]
    """The same by bucket, where it differs."""
    room_s: float
    """Time in which no other pool makes room for the same job."""
    credit_s: float
    """Device-seconds by which a deadline may bring a tenant ahead."""
    answer_ms: int
    origin: Origin
    call: str
    busy: bool
    """True if the pool has other jobs."""
    may_compile: bool
    """Take jobs of other buckets than `warm`."""

    @staticmethod
    def parse(answer: Sequence[str]) -> Claimed:
        """Return the claimed jobs, and whether newer ones were left."""
        is_newer_there = answer[-1:] == ["newer"]
        texts = answer[:-1] if is_newer_there else answer
        return Claimed([serialization.parse(text) for text in texts], is_newer_there)


@dataclass(frozen=True, kw_only=True)
class Preempt(FullPool, Script[MakesRoom | None]):
    """Find a job that a full pool should put aside. The last three are as of a `ClaimJobs`."""

    ratio: float
    """Least ratio of the wait for a free slot to the duration of the waiting job."""
    room_s: float
    """Time in which no other pool makes room for that one."""
    version: int
    warm_s: float
    credit_s: float

    @staticmethod
    def parse(answer: Sequence[str] | None) -> MakesRoom | None:
        """Return the preemption to carry out, where there is one."""
        return MakesRoom(*answer) if answer else None


@dataclass(frozen=True)
class Renew(Script[list[int]]):
    """Extend leases; gives the positions of those claims that are no longer held."""

    claims: Sequence[Lease]
    lease_s: float

    @staticmethod
    def parse(answer: Sequence[int]) -> list[int]:
        """Return the indices of the claims that were lost."""
        return [number - 1 for number in answer]


@dataclass(frozen=True)
class Progress(IfHeld):
    """Report how far a job is, and what is done with it."""

    step: int
    steps: int
    stage: Stage | None
    expected_s: float | None
    """Expected length of the stage."""
    max_previews: int
    """Previews that are kept of one job."""
    spent: Spent | None
    preview: str | None = field(metadata=TEXT)
    """Data of its event, as JSON."""


@dataclass(frozen=True)
class RecordSnapshots(IfHeld):
    """Record the snapshots of a job's images."""

    snapshots: str = field(metadata=TEXT)
    """Snapshots as JSON."""


@dataclass(frozen=True)
class Warn(IfHeld):
    """Record what of a job's request has no effect."""

    warnings: str = field(metadata=TEXT)
    """Warnings as JSON."""


@dataclass(frozen=True)
class Release(IfHeld):
    """Give a job back unharmed."""

    preempted: bool
    """True if it is put aside for a job that should go before it."""
    spent: Spent | None


@dataclass(frozen=True)
class Spend(IfHeld):
    """Record what a claim has taken, also one that is over; answers whether the job is known."""

    spent: Spent


@dataclass(frozen=True)
class Finish(OfClaim[float | None]):
    """End a job well; gives when it ended, None where it is no longer held."""

    made: Delivered
    is_paused: bool
    """Keep its snapshots: it is an audition."""
    outputs: str = field(metadata=TEXT)
    usage: str = field(metadata=TEXT)
    """Usage as JSON; its seconds are this claim's."""

    @staticmethod
    def parse(answer: str | None) -> float | None:
        """Return the time of the end; None: the claim was stale."""
        return float(answer) if answer else None


@dataclass(frozen=True)
class Fail(OfClaim[Failed | None]):
    """End a job badly, or queue it again; None: it is no longer held."""

    retry: bool
    max_attempts: int
    spent: Spent | None
    error: str = field(metadata=TEXT)
    """Error as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any] | None) -> Failed | None:
        """Return the job's state after it; None: the claim was stale."""
        if not answer:
            return None
        state, *finished_at = answer
        return Failed(JobState(state), float(finished_at[0]) if finished_at else None)
