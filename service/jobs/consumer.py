"""Worker side of the queue: registering, claiming jobs, renewing leases, reporting results."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from models.spec.model_spec import ModelSpec
from service.jobs.model import serialization
from service.jobs.model.job import (
    WIRE_VERSION,
    FieldWarning,
    Job,
    JobError,
    JobState,
    Output,
    Snapshot,
    Stage,
    Usage,
)
from service.jobs.model.ledger import DeliveredOutputs, Origin
from service.jobs.model.metrics import JobEnd
from service.jobs.model.preemption import FullPool
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import MAX_COSTS, CostKey, CostRow, PoolFacts
from service.jobs.scripts import consumer
from service.jobs.scripts.client import ANSWER_MS, QueueClient, new_call
from service.jobs.scripts.consumer import ClaimUsage
from service.settings.queue import QueueSettings

MAX_PREVIEWS = 4
"""Maximum number of stored previews of a running job. Each takes some kilobytes until the job
ends."""

UNKNOWN_ORIGIN = Origin()
NOTHING_DELIVERED = DeliveredOutputs()
NO_BUCKETS: Mapping[str, float] = MappingProxyType({})

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """A worker's lease of one job. Calls with the fence of an earlier claim are rejected."""

    job: Job
    fence: int
    queued_at: float | None = None
    """Time at which the job was last queued, by Redis's clock."""
    is_first: bool = False
    """True if this is the job's first claim."""


@dataclass(frozen=True)
class StageReport:
    """Stage of a job that a worker reports, with its expected duration."""

    stage: Stage
    expected_s: float | None = None


ClaimList = list[Claim]


class Consumer(QueueClient):
    """Part of a `Queue` that workers use."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._unanswered: dict[str, str] = {}
        """Id of each worker's claim call that got no answer."""

    async def register(
        self, pool: str, spec: ModelSpec, *, ready: bool, facts: PoolFacts | None = None
    ) -> None:
        """Register a worker and its model, and renew its heartbeat. Call it every `lease_s` / 3."""
        await self._run(
            consumer.Register(
                pool=pool,
                model=spec.name,
                ready=ready,
                fresh_s=self._settings.lease_s,
                facts=facts,
                spec=spec.model_dump_json(),
            )
        )

    async def unregister(self, pool: str, model: str) -> None:
        """Remove a worker's registration for its model."""
        await self._run(consumer.Unregister(pool, model))

    async def measured(self, model: str, rows: Mapping[CostKey, CostRow]) -> None:
        """Store measured costs; rows with the same keys are replaced."""
        measured_rows = [(key.wire(), row.model_dump(exclude={"at"})) for key, row in rows.items()]
        await self._run(consumer.Measured(model, measured_rows, MAX_COSTS))

    async def claim(
        self,
        pool: str,
        model: str,
        slots: int,
        *,
        wait_s: float = 0.0,
        warm: Sequence[str] = (),
        adapters: Sequence[str] = (),
        slowness: float = 1.0,
        slowness_in: Mapping[str, float] = NO_BUCKETS,
        busy: Callable[[], bool] = lambda: False,
        may_compile: Callable[[], bool] | None = None,
        has_room: Callable[[], bool] = lambda: True,
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> ClaimList:
        """Claim the next job and, from all tenants in turn, jobs of the same bucket.

        The claimed jobs have up to `slots` images in total. A first job with more images than that
        is claimed alone. Waits up to `wait_s` for a first job.

        Args:
            warm: buckets that the worker has compiled. Jobs of other buckets wait a little for a
                worker that has compiled them.
            adapters: digests of adapters on the worker's device. Jobs with others wait a little.
            slowness: duration of a job here relative to the fastest ready worker.
            slowness_in: the same for single buckets.
            busy: whether the worker has other jobs now. A busy worker gets no job that crashed a
                worker.
            may_compile: whether the worker now takes a job of a cold bucket, which it then claims
                alone; None: cold buckets are treated as any other.
            has_room: whether the worker still takes jobs; if not, `claim` stops waiting.
            origin: origin of the outputs for the ledger. Its checkpoint fingerprint is stored in
                the jobs.
        """
        if slots < 1:
            return []
        until = asyncio.get_running_loop().time() + wait_s
        script = partial(
            consumer.ClaimJobs,
            pool=pool,
            model=model,
            slots=slots,
            version=WIRE_VERSION,
            lease_s=self._settings.lease_s,
            warm=list(warm),
            rides_wait=may_compile is not None,
            warm_s=self._settings.affinity_s,
            adapters=list(adapters),
            slowness=slowness,
            slowness_in=dict(slowness_in),
            room_s=self._settings.lease_s,
            credit_s=self._settings.deadline_credit_s,
            answer_ms=ANSWER_MS,
            origin=origin,
        )
        attempt = partial(self._claim_now, script, pool, model, busy, may_compile, has_room)
        claims = await self._release_if_canceled(attempt)
        if claims or wait_s <= 0:
            return claims
        with self._subscriber.waking(keys.QUEUED, model) as wake:
            while not claims and has_room() and not self._subscriber.closed:
                wake.clear()
                claims = await self._release_if_canceled(attempt)
                if not claims and not await _set_before(wake, until):
                    break
        return claims

    def wake_claims(self, model: str) -> None:
        """Wake this process's waiting claims, for example after slots have become free."""
        self._subscriber.wake(keys.QUEUED, model)

    async def _release_if_canceled(
        self, once: Callable[[], Coroutine[Any, Any, ClaimList]]
    ) -> ClaimList:
        """Attempt one claim; release the claimed jobs if the caller is canceled meanwhile."""
        call = asyncio.ensure_future(once())
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            for claim in await call:
                await self.release(claim)
            raise

    async def _claim_now(
        self,
        script: Callable[..., consumer.ClaimJobs],
        pool: str,
        model: str,
        busy: Callable[[], bool],
        may_compile: Callable[[], bool] | None,
        has_room: Callable[[], bool],
    ) -> ClaimList:
        """Attempt a claim without waiting.

        If the last claim of this worker got no answer, repeat that call: it may have been executed.
        """
        if not has_room():
            return []
        call = self._unanswered.pop(pool, None) or new_call()
        may = may_compile is None or may_compile()
        try:
            claimed = await self._run(script(call=call, busy=busy(), may_compile=may))
        except (RedisError, OSError):
            self._unanswered[pool] = call
            raise
        if claimed.skipped_newer:
            logger.warning("a job of %r needs a newer worker than %r: upgrade it", model, pool)
        claims = [_claim(fields) for fields in claimed.jobs]
        for claim in claims:
            if claim.is_first:
                self.job_metrics.claimed(claim.job)
        return claims

    async def preempt(self, full: FullPool, ratio: float, room_s: float) -> tuple[str, str] | None:
        """Return the job that a full worker should release, and the one that it claims then.

        None: no job should be preempted.

        Args:
            ratio: minimum ratio of the time until a slot becomes free to the waiting job's
                duration.
            room_s: time for which no other worker makes room for the waiting job.
        """
        return await self._run(
            consumer.Preempt(
                **vars(full),
                ratio=ratio,
                room_s=room_s,
                version=WIRE_VERSION,
                warm_s=self._settings.affinity_s,
                credit_s=self._settings.deadline_credit_s,
            )
        )

    async def renew(self, claims: Sequence[Claim], spent: Sequence[ClaimUsage] = ()) -> ClaimList:
        """Renew leases; return the claims that were lost or canceled.

        Args:
            spent: device-seconds of each claim; empty: unknown.
        """
        held: list[consumer.Lease] = [(claim.job.id, claim.fence) for claim in claims]
        if spent:
            held = [(*lease[:2], taken) for lease, taken in zip(held, spent, strict=True)]
        lost = await self._run(consumer.Renew(held, self._settings.lease_s))
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
        return await self._run(
            consumer.Progress(
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
        return await self._run(consumer.RecordSnapshots(claim.job.id, claim.fence, text))

    async def warn(self, claim: Claim, warnings: Sequence[FieldWarning]) -> bool:
        """Replace a job's warnings. Returns False if the claim was lost."""
        text = serialization.warnings_json(warnings)
        return await self._run(consumer.Warn(claim.job.id, claim.fence, text))

    async def finish(self, claim: Claim, outputs: Sequence[Output], usage: Usage) -> bool:
        """End a job successfully, or pause an audition, which keeps its snapshots.

        Returns False if the claim was lost: the caller may delete the outputs.

        Args:
            usage: usage with the seconds of this claim. The seconds of earlier claims are added.
        """
        is_paused = claim.job.stop_at_step is not None
        state = JobState.PAUSED if is_paused else JobState.SUCCEEDED
        finished_at = await self._run(
            consumer.Finish(
                claim.job.id,
                claim.fence,
                made=NOTHING_DELIVERED
                if is_paused
                else DeliveredOutputs.of(claim.job.request, outputs),
                is_paused=is_paused,
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
        answer = await self._run(
            consumer.Fail(
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
        return await self._run(consumer.Release(claim.job.id, claim.fence, preempted, spent))

    async def spent(self, claim: Claim, spent: ClaimUsage) -> bool:
        """Record the device-seconds of a claim, even of one that is over.

        The tenant is charged once, however often they are recorded. Returns False if the job is
        unknown.
        """
        return await self._run(consumer.Spend(claim.job.id, claim.fence, spent))

    async def canceled(self) -> AsyncGenerator[str, None]:
        """Yield ids of running jobs as they are canceled or expire.

        Workers drop them within one step. Ids that are lost with a connection are not repeated;
        `renew` and `progress` report those jobs as lost. Ends on `close`.
        """
        with self._subscriber.feed(keys.STOPPED) as stopped:
            while (job_id := await stopped.get()) is not None:
                yield job_id


def _claim(fields: dict[str, str]) -> Claim:
    came_at = fields.get("queued_at")
    return Claim(
        serialization.from_hash(fields),
        int(fields["fence"]),
        float(came_at) if came_at else None,
        fields.get("first_fence") == fields["fence"],
    )


async def _set_before(wake: asyncio.Event, until: float) -> bool:
    """Wait for an event; return False if it is not set by `until`."""
    try:
        async with asyncio.timeout_at(until):
            return await wake.wait()
    except TimeoutError:
        return False
