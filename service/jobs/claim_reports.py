"""Reports of workers about claimed jobs: leases, progress, snapshots, and results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.jobs.model import serialization
from service.jobs.model.job import (
    FieldWarning,
    Job,
    JobError,
    JobState,
    Output,
    Snapshot,
    Stage,
    Usage,
)
from service.jobs.model.ledger import DeliveredOutputs
from service.jobs.model.metrics import JobEnd
from service.jobs.scripts.client import QueueClient
from service.jobs.scripts.script import TEXT, AcknowledgedClaimScript, ClaimScript, Script

MAX_PREVIEWS = 4
"""Maximum number of stored previews of a running job. Each takes some kilobytes until the job
ends."""

NOTHING_DELIVERED = DeliveredOutputs()


@dataclass(frozen=True)
class Claim:
    """A worker's lease of one job. Calls with the fence of an earlier claim are rejected."""

    job: Job
    fence: int
    queued_at: float | None = None
    """Time at which the job was last queued, by Redis's clock."""
    is_first: bool = False
    """True if this is the job's first claim."""


ClaimList = list[Claim]


@dataclass(frozen=True)
class StageReport:
    """Stage of a job that a worker reports, with its expected duration."""

    stage: Stage
    expected_s: float | None = None


class ClaimUsage(NamedTuple):
    """Device-seconds that one claim has used so far."""

    device_s: float
    """Device-seconds, including those for compiling."""
    compile_s: float


Lease = tuple[str, int] | tuple[str, int, ClaimUsage]
"""Job id and fence of a claim, and its device-seconds if known."""


@dataclass(frozen=True)
class Renew(Script[list[int]]):
    """Script call that renews the leases of claims."""

    claims: Sequence[Lease]
    lease_s: float

    @staticmethod
    def parse(answer: Sequence[int]) -> list[int]:
        """Return the indices of the claims whose leases were lost."""
        return [number - 1 for number in answer]


@dataclass(frozen=True)
class Progress(AcknowledgedClaimScript):
    """Script call that reports a job's progress and stage."""

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
    """Script call that replaces the snapshots of a job's images."""

    snapshots: str = field(metadata=TEXT)
    """Snapshots as JSON."""


@dataclass(frozen=True)
class Warn(AcknowledgedClaimScript):
    """Script call that replaces a job's warnings."""

    warnings: str = field(metadata=TEXT)
    """Warnings as JSON."""


@dataclass(frozen=True)
class Release(AcknowledgedClaimScript):
    """Script call that returns a job to the queue without counting the attempt."""

    preempted: bool
    """True if it yields to a more urgent job."""
    spent: ClaimUsage | None


@dataclass(frozen=True)
class Spend(AcknowledgedClaimScript):
    """Script call that records a claim's device-seconds, even after its end.

    Answers whether the job is known.
    """

    spent: ClaimUsage


@dataclass(frozen=True)
class Finish(ClaimScript[float | None]):
    """Script call that ends a job successfully, or pauses an audition."""

    made: DeliveredOutputs
    is_paused: bool
    """True for an audition, whose snapshots are kept."""
    draft_ttl_s: float | None
    """Seconds for which they are kept; None: as long as the job."""
    outputs: str = field(metadata=TEXT)
    usage: str = field(metadata=TEXT)
    """Usage as JSON, with the seconds of this claim."""

    @staticmethod
    def parse(answer: str | None) -> float | None:
        """Return the time of the job's end, or None if the claim was lost."""
        return float(answer) if answer else None


class FailResult(NamedTuple):
    """State of a job after a failed attempt."""

    state: JobState
    finished_at: float | None
    """Time of its end; None: it was requeued."""


@dataclass(frozen=True)
class Fail(ClaimScript[FailResult | None]):
    """Script call that fails a job, or requeues it."""

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


class ClaimReports(QueueClient):
    """Part of a `Queue` with which workers report about their claims."""

    async def renew(self, claims: Sequence[Claim], spent: Sequence[ClaimUsage] = ()) -> ClaimList:
        """Renew leases; return the claims that were lost or canceled.

        Args:
            spent: device-seconds of each claim; empty: unknown.
        """
        held: list[Lease] = [(claim.job.id, claim.fence) for claim in claims]
        if spent:
            held = [(*lease[:2], taken) for lease, taken in zip(held, spent, strict=True)]
        lost = await self.run(Renew(held, self._settings.lease_s))
        return [claims[i] for i in lost]

    async def progress(
        self,
        claim: Claim,
        step: int,
        steps: int,
        preview: str | None = None,
        stage_report: StageReport | None = None,
        spent: ClaimUsage | None = None,
    ) -> bool:
        """Report a job's progress. Returns False if the claim was lost. `preview` is a data URI."""
        shown = {"step": step, "steps": steps, "preview": preview}
        return await self.run(
            Progress(
                claim.job.id,
                claim.fence,
                step=step,
                steps=steps,
                stage=stage_report.stage if stage_report else None,
                expected_s=stage_report.expected_s if stage_report else None,
                max_previews=MAX_PREVIEWS,
                spent=spent,
                preview=json.dumps(shown) if preview else None,
            )
        )

    async def snapshot(self, claim: Claim, snapshots: Sequence[Snapshot]) -> bool:
        """Replace a job's snapshots, one per image at most.

        `reap` returns the files of the replaced ones for deletion. Returns False if the claim was
        lost: the caller may delete the new files.
        """
        text = serialization.snapshots_json(snapshots)
        return await self.run(RecordSnapshots(claim.job.id, claim.fence, text))

    async def warn(self, claim: Claim, warnings: Sequence[FieldWarning]) -> bool:
        """Replace a job's warnings. Returns False if the claim was lost."""
        text = serialization.warnings_json(warnings)
        return await self.run(Warn(claim.job.id, claim.fence, text))

    async def finish(self, claim: Claim, outputs: Sequence[Output], usage: Usage) -> bool:
        """End a job successfully, or pause an audition, which keeps its snapshots.

        Returns False if the claim was lost: the caller may delete the outputs.

        Args:
            usage: usage with the seconds of this claim. The seconds of earlier claims are added.
        """
        is_paused = claim.job.stop_at_step is not None
        state = JobState.PAUSED if is_paused else JobState.SUCCEEDED
        finished_at = await self.run(
            Finish(
                claim.job.id,
                claim.fence,
                made=NOTHING_DELIVERED
                if is_paused
                else DeliveredOutputs.of(claim.job.request, outputs),
                is_paused=is_paused,
                draft_ttl_s=claim.job.draft_ttl_s,
                outputs=serialization.outputs_json(outputs),
                usage=usage.model_dump_json(),
            )
        )
        if finished_at:
            self.job_metrics.ended(JobEnd.of(claim.job, state, finished_at))
        return bool(finished_at)

    async def fail(
        self, claim: Claim, error: JobError, *, retry: bool = False, spent: ClaimUsage | None = None
    ) -> JobState | None:
        """Fail a job, or requeue it with `retry` until `max_attempts`. None: the claim was lost."""
        answer = await self.run(
            Fail(
                claim.job.id,
                claim.fence,
                retry=retry,
                max_attempts=self._settings.max_attempts,
                spent=spent,
                error=error.model_dump_json(),
            )
        )
        if answer is None:
            return None
        if answer.finished_at:
            self.job_metrics.ended(
                JobEnd.of(claim.job, answer.state, answer.finished_at, error.code)
            )
        else:
            self.job_metrics.retried(claim.job.model, error.code)
        return answer.state

    async def release(
        self, claim: Claim, *, preempted: bool = False, spent: ClaimUsage | None = None
    ) -> bool:
        """Return a job to its former place in the queue without counting the attempt.

        Args:
            preempted: True if the job yields to a more urgent one. Its place moves back by its
                running time, which was no waiting.
        """
        return await self.run(Release(claim.job.id, claim.fence, preempted, spent))

    async def spent(self, claim: Claim, spent: ClaimUsage) -> bool:
        """Record the device-seconds of a claim, even of one that is over.

        The tenant is charged once, however often they are recorded. Returns False if the job is
        unknown.
        """
        return await self.run(Spend(claim.job.id, claim.fence, spent))
