"""Running jobs of a worker, each in its own task, and the leases of their claims."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from service.jobs import job_spans
from service.jobs.model.job import JobState
from service.jobs.model.lease import RENEWALS
from service.jobs.model.preemption import Preemptible
from service.jobs.queue import Claim, ClaimUsage, Queue
from service.jobs.redis.tasks import cancel
from service.jobs.storage.errors import StoreError
from service.settings.pools import PoolSettings
from service.tracing.log_context import hide_prompts, log_fields, note
from workers.engine.engine import Engine
from workers.pool import metrics
from workers.pool.capacity import Capacity
from workers.pool.job_context import JobContext, WorkerContext, no_check
from workers.pool.job_runner import JobRunner
from workers.pool.progress import Bill, Progress
from workers.pool.snapshot_budget import Budget
from workers.pool.snapshots import Snapshots, SnapshotStore
from workers.retry import QUEUE_ERRORS, until_reached

DROPPED = "dropped"
"""Outcome of a job whose claim is no longer valid."""
SUSPENDING = 0.3
"""Share of the drain time in which a job is suspended."""
CHECK_EVERY_S = 0.1
"""Seconds between checks of a draining worker whether its jobs still end in time."""

log = logging.getLogger(__name__)


class Leases:
    """Leases of the claims that a worker holds, renewed together.

    Args:
        on_lost: called with each claim that is no longer valid: canceled, expired, or lapsed and
            reassigned.
    """

    def __init__(self, queue: Queue, lease_s: float, on_lost: Callable[[Claim], None]) -> None:
        self._queue = queue
        self._every_s = lease_s / RENEWALS
        self._on_lost = on_lost
        self._held: dict[str, tuple[Claim, Bill]] = {}

    def hold(self, claim: Claim, bill: Bill) -> None:
        """Start to renew the lease of a claim."""
        self._held[claim.job.id] = claim, bill

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim is valid, as of the last renewal."""
        entry = self._held.get(claim.job.id)
        return entry is not None and entry[0] is claim

    def drop(self, claim: Claim) -> None:
        """Stop renewing the lease of a claim."""
        if self.holds(claim):
            del self._held[claim.job.id]

    async def run(self) -> None:
        """Renew the leases of claims until canceled. None lapses while Redis is down."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._renew()
            except QUEUE_ERRORS as error:
                log.warning("leases cannot be renewed now: %s", error)

    async def _renew(self) -> None:
        if not self._held:
            return
        claims, bills = zip(*self._held.values(), strict=True)
        for claim in await self._queue.renew(claims, [bill.spent for bill in bills]):
            self.drop(claim)
            self._on_lost(claim)


class RunningJobs:
    """Registry of the running jobs: starts claims, and ends, drops, suspends or releases them."""

    def __init__(
        self, worker: WorkerContext, capacity: Capacity, lease_s: float, settings: PoolSettings
    ) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._capacity = capacity
        # Previews would show unchecked output.
        self._preview_every_s = settings.preview_every_s if worker.check is no_check else 0
        self._suspend_s = SUSPENDING * settings.drain_s
        self._clearing: asyncio.Task[None] | None = None
        """Task that suspends jobs for an operator's drain, while the worker keeps running."""
        self._snapshot_store = SnapshotStore(
            cast(Engine, worker.engine),  # rows of other backends have no snapshots
            *(worker.queue, worker.store),
            *(Budget(settings.snapshot_share), worker.patience),
        )
        self.leases = Leases(worker.queue, lease_s, self.drop)
        self._tasks: dict[JobRunner, asyncio.Task[str]] = {}
        self._still_compiling: set[JobRunner] = set()
        """Jobs that have left while their compilations, which cannot be stopped, continue."""

    @property
    def jobs(self) -> int:
        """Number of jobs this worker is running."""
        return len(self._tasks)

    @property
    def compiling(self) -> int:
        """Number of jobs that may need compilation.

        Includes jobs that wait for another job's programs, and jobs that left while theirs are
        still compiling.
        """
        return sum(runner.may_compile for runner in self._tasks) + len(self._still_compiling)

    @property
    def free_slots(self) -> int:
        """Number of slots that no image of a running job occupies; 0 while a suspect job runs."""
        if any(runner.claim.job.deaths for runner in self._tasks):
            return 0
        occupied = sum(runner.reservation.images_with_slot for runner in self._tasks)
        return self._capacity.unoccupied(occupied, len(self._tasks))

    def hold(self, claims: Iterable[Claim]) -> None:
        """Renew the leases of claims until `start`, however long preceding work takes."""
        for claim in claims:
            self.leases.hold(claim, Bill())

    def start(self, claim: Claim) -> None:
        """Start a held claim, unless it has been lost."""
        if not self.leases.holds(claim):
            return
        job, worker, bill = claim.job, self._worker, Bill()
        self.drop_job(job.id)  # an earlier claim of the same job has lapsed
        runner = JobRunner(
            JobContext(
                worker,
                claim,
                Progress(
                    worker.queue, claim, worker.engine, self._preview_every_s, self.drop, bill
                ),
                Snapshots(self._snapshot_store, claim),
                self._capacity.enter(job.images, is_suspect=bool(job.deaths)),
                bill,
            )
        )
        self.leases.hold(claim, bill)
        self._tasks[runner] = task = asyncio.create_task(self._run_job(runner), name=job.id)
        # Not in a `finally` of the task: a task canceled before it starts does not run it.
        task.add_done_callback(partial(self._free_resources, runner))
        metrics.claims.labels(job.model).inc()
        job_spans.report_wait(claim)

    def drop(self, claim: Claim) -> None:
        """Cancel a job whose claim is no longer valid; its rows leave with the next step."""
        self._drop(runner for runner in self._tasks if runner.claim is claim)

    def drop_job(self, job_id: str) -> None:
        """Cancel the task of the job with this id."""
        self._drop(runner for runner in self._tasks if runner.claim.job.id == job_id)

    def _drop(self, runners: Iterable[JobRunner]) -> None:
        for runner in runners:
            if not runner.is_ending:  # otherwise the queue's answer ends it
                task = self._tasks[runner]
                task.cancel()
                self._snapshot_store.spawn(self._clear_up(runner, task))

    async def _clear_up(self, runner: JobRunner, task: asyncio.Task[str]) -> None:
        note(**runner.claim.job.log_fields)
        try:
            await asyncio.wait([task])
            await runner.clear_up()
        except StoreError as error:
            log.warning("files of %s may be left: %s", runner.claim.job.id, error)

    def full(self, quantum_s: float) -> tuple[float, list[Preemptible]]:
        """Return the seconds until a slot becomes free, and the jobs that may be preempted.

        0 seconds: unknown.

        Args:
            quantum_s: minimum time that they must have run.
        """
        runners = [runner for runner in self._tasks if runner.reservation.images_with_slot]
        left = {runner: runner.seconds_left or 0.0 for runner in runners}
        candidates = [
            Preemptible(
                runner.claim.job.id,
                runner.claim.fence,
                left[runner],
                runner.reservation.images_with_slot,
            )
            for runner in runners
            if runner.may_yield(quantum_s)
        ]
        return min(left.values(), default=0.0), candidates

    async def suspend(self, job_id: str, for_id: str, time_s: float) -> bool:
        """Suspend a job with its complete state and release it, to free its slots for another job.

        Return whether it was suspended; a job whose state cannot be stored in time continues.
        """
        for runner in self._tasks:
            if runner.claim.job.id == job_id:
                with log_fields(**runner.claim.job.log_fields):
                    return await self._suspend(runner, for_id, time_s)
        return False

    async def _suspend(self, runner: JobRunner, for_id: str, time_s: float) -> bool:
        if not await runner.suspend_if_complete(time_s):
            return False
        # Released first, so that the lease need not lapse even if this task fails.
        claim, spent = runner.claim, runner.bill.spent
        release = partial(self._queue.release, claim, preempted=True, spent=spent)
        is_ours = await until_reached(release)
        self.drop_job(claim.job.id)
        if is_ours:
            log.info("job %s was preempted for %s", claim.job.id, for_id)
        return is_ours

    def check_slots(self) -> None:
        """Verify that no slot is taken while no job runs.

        Raises: RuntimeError: the slot would never be freed.
        """
        if not self._tasks and not self._capacity.is_unused:
            raise RuntimeError("slots are taken while no job runs; restart the pool")

    def begin_clearing(self) -> bool:
        """Begin to suspend all running jobs; False: none runs, or suspension is in progress."""
        if not self._tasks or (self._clearing and not self._clearing.done()):
            return False
        self._clearing = asyncio.create_task(self.clear(0))
        return True

    async def clear(self, time_s: float, suspend_s: float | None = None) -> None:
        """Finish or suspend all running jobs; return when none is left.

        Jobs that can end within `time_s` do; the others are suspended as soon as possible, for
        other workers.

        Args:
            suspend_s: timeout to suspend one job; None: a share of the drain time.
        """
        until = time.monotonic() + time_s
        timeout_s = self._suspend_s if suspend_s is None else suspend_s
        await asyncio.gather(
            *(self._clear(runner, until, timeout_s) for runner in list(self._tasks))
        )

    async def _clear(self, runner: JobRunner, until: float, suspend_s: float) -> None:
        task = self._tasks[runner]
        while not task.done() and runner.ends_within(until - time.monotonic()):
            await asyncio.wait([task], timeout=CHECK_EVERY_S)
        if not (task.done() or runner.is_ending):
            await runner.suspend(suspend_s)
            await self._stop_and_release(runner, task)

    async def emptied(self) -> None:
        """Wait until no job is left, even ending ones. No job may be added meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def release_all(self) -> None:
        """Stop all jobs and release them, uncounted, to other workers."""
        running = list(self._tasks.items())
        await asyncio.gather(*(self._stop_and_release(runner, task) for runner, task in running))
        await self._snapshot_store.stop()

    async def _stop_and_release(self, runner: JobRunner, task: asyncio.Task[str]) -> None:
        await cancel(task)
        await self._release(runner.claim, runner.bill.spent)

    async def _release(self, claim: Claim, spent: ClaimUsage) -> None:
        with log_fields(**claim.job.log_fields):
            if await until_reached(partial(self._queue.release, claim, spent=spent)):
                log.info("job %s was released", claim.job.id)

    async def _run_job(self, runner: JobRunner) -> str:
        """Run a claimed job to its end; return its outcome."""
        job, outcome = runner.claim.job, DROPPED
        note(**job.log_fields)
        hide_prompts(job.request)
        with job_spans.attempt(runner.claim) as runner.span:
            log.info("job %s runs", job.id)
            try:
                outcome = await runner.run()
            finally:
                log.info("job %s ended: %s", job.id, outcome)
                runner.span.set_attribute(job_spans.OUTCOME, outcome)
        return outcome

    def _free_resources(self, runner: JobRunner, task: asyncio.Task[str]) -> None:
        """Free a job's resources after its task has ended, before other callbacks of the task."""
        error = None if task.cancelled() else task.exception()
        if error:
            log.error("job %s ended with an error", runner.claim.job.id, exc_info=error)
        outcome = DROPPED if error or task.cancelled() else task.result()
        self.leases.drop(runner.claim)
        runner.reservation.release()
        del self._tasks[runner]
        if outcome not in (JobState.SUCCEEDED, JobState.PAUSED):
            if not runner.bill.is_settled:
                self._still_compiling.add(runner)
            self._snapshot_store.spawn(self._settle(runner))
        if runner.may_compile or not self._tasks:  # jobs held back by it may now be claimed
            self._queue.wake_claims(runner.claim.job.model)
        metrics.jobs.labels(runner.claim.job.model, outcome).inc()

    async def _settle(self, runner: JobRunner) -> None:
        """Report the usage of a job that has left; again when its compilations have ended."""
        note(**runner.claim.job.log_fields)
        await self._report_spent(runner)
        if runner in self._still_compiling:
            await runner.bill.settled()
            self._still_compiling.remove(runner)
            self._queue.wake_claims(runner.claim.job.model)
            await self._report_spent(runner)

    async def _report_spent(self, runner: JobRunner) -> None:
        await until_reached(self._queue.spent, runner.claim, runner.bill.spent)
