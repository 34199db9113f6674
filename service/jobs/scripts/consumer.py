"""Calls of the scripts that workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.jobs.model import serialization
from service.jobs.model.job import JobState, Stage
from service.jobs.model.ledger import DeliveredOutputs, Origin
from service.jobs.model.preemption import FullPool
from service.jobs.scheduling.cost_model import PoolFacts
from service.jobs.scripts.script import (
    TEXT,
    AcknowledgedClaimScript,
    ClaimScript,
    Script,
    ScriptWithoutAnswer,
)


class ClaimUsage(NamedTuple):
    """Device-seconds that one claim has used so far."""

    device_s: float
    """Device-seconds, including those for compiling."""
    compile_s: float


Lease = tuple[str, int] | tuple[str, int, ClaimUsage]
"""Job id and fence of a claim, and its device-seconds if known."""


class ClaimResult(NamedTuple):
    """Jobs that a call claimed."""

    jobs: list[dict[str, str]]
    """Hashes of the jobs, including fields that only the scripts use."""
    skipped_newer: bool
    """True if a job of a newer wire version was skipped."""


class Preemption(NamedTuple):
    """Preemption that a full worker should carry out."""

    preempted: str
    """Id of the job that it should release."""
    waiting: str
    """Id of the job that its next claim then takes."""


class FailResult(NamedTuple):
    """State of a job after a failed attempt."""

    state: JobState
    finished_at: float | None
    """Time of its end; None: it was requeued."""


@dataclass(frozen=True)
class Register(ScriptWithoutAnswer):
    """Register a worker, or renew its heartbeat."""

    pool: str
    model: str
    ready: bool
    fresh_s: float
    """Lifetime of the heartbeat."""
    facts: PoolFacts | None
    spec: str = field(metadata=TEXT)
    """Spec of the model, as JSON."""


@dataclass(frozen=True)
class Unregister(ScriptWithoutAnswer):
    """Remove a worker's registration."""

    pool: str
    model: str


@dataclass(frozen=True)
class Measured(ScriptWithoutAnswer):
    """Store costs that a worker has measured."""

    model: str
    rows: Sequence[tuple[str, Mapping[str, float | None]]]
    """Rows to store: key in the table, and fields."""
    max_rows: int
    """Maximum number of rows; the oldest are removed."""


@dataclass(frozen=True)
class ClaimJobs(Script[ClaimResult]):
    """Claim jobs for a worker. The last three fields are set anew for each attempt."""

    pool: str
    model: str
    slots: int
    version: int
    """Newest wire version that the worker reads."""
    lease_s: float
    warm: Sequence[str]
    """Buckets that the worker has compiled."""
    rides_wait: bool
    """True if a job of a cold bucket is claimed alone."""
    warm_s: float
    """Time that a job of a cold bucket waits for a worker that has compiled it."""
    adapters: Sequence[str]
    """Digests of the adapters on the worker's device."""
    slowness: float
    """Duration of a job here relative to the fastest worker."""
    slowness_in: Mapping[str, float]
    """The same by bucket, where it differs."""
    room_s: float
    """Time for which no other worker makes room for the same job."""
    credit_s: float
    """Device-seconds by which a deadline may bring a tenant ahead of its share."""
    answer_ms: int
    origin: Origin
    call: str
    busy: bool
    """True if the worker has other jobs."""
    may_compile: bool
    """Whether to claim jobs of cold buckets."""

    @staticmethod
    def parse(answer: Sequence[str]) -> ClaimResult:
        """Return the claimed jobs, and whether newer ones were skipped."""
        is_newer_there = answer[-1:] == ["newer"]
        texts = answer[:-1] if is_newer_there else answer
        return ClaimResult([serialization.parse(text) for text in texts], is_newer_there)


@dataclass(frozen=True, kw_only=True)
class Preempt(FullPool, Script[Preemption | None]):
    """Select a job that a full worker should preempt. For the last three fields see `ClaimJobs`."""

    ratio: float
    """Minimum ratio of the wait for a free slot to the waiting job's duration."""
    room_s: float
    """Time for which no other worker makes room for the waiting job."""
    version: int
    warm_s: float
    credit_s: float

    @staticmethod
    def parse(answer: Sequence[str] | None) -> Preemption | None:
        """Return the preemption to carry out, or None."""
        return Preemption(*answer) if answer else None


@dataclass(frozen=True)
class Renew(Script[list[int]]):
    """Renew the leases of claims."""

    claims: Sequence[Lease]
    lease_s: float

    @staticmethod
    def parse(answer: Sequence[int]) -> list[int]:
        """Return the indices of the claims that were lost."""
        return [number - 1 for number in answer]


@dataclass(frozen=True)
class Progress(AcknowledgedClaimScript):
    """Report a job's progress and stage."""

    step: int
    steps: int
    stage: Stage | None
    expected_s: float | None
    """Expected duration of the stage."""
    max_previews: int
    """Maximum number of stored previews of one job."""
    spent: ClaimUsage | None
    preview: str | None = field(metadata=TEXT)
    """Data of the preview's event, as JSON."""


@dataclass(frozen=True)
class RecordSnapshots(AcknowledgedClaimScript):
    """Replace the snapshots of a job's images."""

    snapshots: str = field(metadata=TEXT)
    """Snapshots as JSON."""


@dataclass(frozen=True)
class Warn(AcknowledgedClaimScript):
    """Replace a job's warnings."""

    warnings: str = field(metadata=TEXT)
    """Warnings as JSON."""


@dataclass(frozen=True)
class Release(AcknowledgedClaimScript):
    """Return a job to the queue without counting the attempt."""

    preempted: bool
    """True if it yields to a more urgent job."""
    spent: ClaimUsage | None


@dataclass(frozen=True)
class Spend(AcknowledgedClaimScript):
    """Record a claim's device-seconds, even after its end. Answers whether the job is known."""

    spent: ClaimUsage


@dataclass(frozen=True)
class Finish(ClaimScript[float | None]):
    """End a job successfully, or pause an audition."""

    made: DeliveredOutputs
    is_paused: bool
    """True for an audition, whose snapshots are kept."""
    outputs: str = field(metadata=TEXT)
    usage: str = field(metadata=TEXT)
    """Usage as JSON, with the seconds of this claim."""

    @staticmethod
    def parse(answer: str | None) -> float | None:
        """Return the time of the end, or None if the claim was lost."""
        return float(answer) if answer else None


@dataclass(frozen=True)
class Fail(ClaimScript[FailResult | None]):
    """Fail a job, or requeue it."""

    retry: bool
    max_attempts: int
    spent: ClaimUsage | None
    error: str = field(metadata=TEXT)
    """Error as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any] | None) -> FailResult | None:
        """Return the job's state afterwards, or None if the claim was lost."""
        if not answer:
            return None
        state, *finished_at = answer
        return FailResult(JobState(state), float(finished_at[0]) if finished_at else None)
