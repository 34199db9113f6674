"""Running jobs: those that a pool works on now, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from service.jobs import job_spans
from service.jobs.model.job import JobState
from service.jobs.model.preemption import Held
from service.jobs.queue import Claim, Queue, Spent
from service.jobs.redis.tasks import cancel
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from service.tracing.log_context import about, hide_prompts, note
from workers.engine.engine import Engine
from workers.media.marking import Marking
from workers.media.sent_videos import SentVideos
from workers.pool import metrics
from workers.pool.capacity import Capacity
from workers.pool.job_runner import JobRunner
from workers.pool.leases import Leases
from workers.pool.origin import made_by
from workers.pool.output_checks import OutputCheck, no_check
from workers.pool.progress import Progress
from workers.pool.receipts import Receipts
from workers.pool.snapshot_budget import Budget
from workers.pool.snapshot_store import SnapshotStore
from workers.pool.snapshots import Snapshots
from workers.pool.usage import Bill
from workers.retry import Patience, until_reached

DROPPED = "dropped"
"""Outcome of a job that is no longer ours."""
LOOK_EVERY_S = 0.1
"""Interval at which a draining pool looks whether its jobs still end in time."""

log = logging.getLogger(__name__)


class RunningJobs:
    """Takes claims, and gives them up: to their end, to whom they belong now, or back."""

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        store: Store,
        capacity: Capacity,
        lease_s: float,
        settings: PoolSettings,
        marking: Marking,
        receipts: Receipts,
        check: OutputCheck | None = None,
        videos: SentVideos | None = None,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._store = store
        self._capacity = capacity
        self._marking = marking
        self._receipts = receipts
        self._made_by = made_by(engine.pipeline.spec, engine.layout)
        self._check = check or no_check
        self._videos = videos or SentVideos()
        # A preview shows what has not been checked.
        self._preview_every_s = 0 if check else settings.preview_every_s
        self._patience = Patience(settings.store_patience_s)
        budget = Budget(settings.snapshot_share)
        self._snapshot_store = SnapshotStore(engine, queue, store, budget, self._patience)
        self.leases = Leases(queue, lease_s, self.drop)
        self._tasks: dict[JobRunner, asyncio.Task[str]] = {}
        self._owing: set[JobRunner] = set()
        """Jobs that have left while programs are compiled on their account, which nobody can
        stop."""

    @property
    def jobs(self) -> int:
        """Number of jobs this worker is running."""
        return len(self._tasks)

    @property
    def compiling(self) -> int:
        """Number of jobs that may have to be compiled for.

        Those that wait for another job's programs, too, and those that have left while theirs are
        compiled to the end.
        """
        return sum(work.may_compile for work in self._tasks) + len(self._owing)

    def hold(self, claims: Iterable[Claim]) -> None:
        """Keep claims that are soon to be taken, however long what goes before them takes."""
        for claim in claims:
            self.leases.hold(claim, Bill())

    def take(self, claim: Claim) -> None:
        """Begin to work on a claim that is held, unless it has been lost."""
        if not self.leases.holds(claim):
            return
        job, queue, engine = claim.job, self._queue, self._engine
        self.drop_job(job.id)  # an earlier claim of the same job: it has lapsed, or we had no other
        bill = Bill()
        progress = Progress(queue, claim, engine, self._preview_every_s, self.drop, bill)
        snapshots = Snapshots(self._snapshot_store, claim)
        places = self._capacity.enter(job.images, is_suspect=bool(job.deaths))
        work = JobRunner(
            claim, engine, queue, self._store, self._patience, progress, snapshots, places, bill,
            self._marking, self._check, self._receipts, self._made_by, self._videos,
        )  # fmt: skip
        self.leases.hold(claim, bill)
        self._tasks[work] = task = asyncio.create_task(self._see_through(work), name=job.id)
        # Not by a `finally` of the task: one that is canceled before its first step runs none.
        task.add_done_callback(partial(self._let_go, work))
        metrics.claims.labels(job.model).inc()
        job_spans.waited(claim)

    def drop(self, claim: Claim) -> None:
        """Drop a job that is no longer ours: its rows leave with the next step."""
        self._drop(work for work in self._tasks if work.claim is claim)

    def drop_job(self, job_id: str) -> None:
        """Drop a job by its id."""
        self._drop(work for work in self._tasks if work.claim.job.id == job_id)

    def _drop(self, works: Iterable[JobRunner]) -> None:
        for work in works:
            if not work.is_ending:  # otherwise it is about to hear for itself what became of it
                task = self._tasks[work]
                task.cancel()
                self._snapshot_store.spawn(self._clear_up(work, task))

    async def _clear_up(self, work: JobRunner, task: asyncio.Task[str]) -> None:
        note(**work.claim.job.log_fields)
        try:
            await asyncio.wait([task])
            await work.clear_up()
        except StoreError as error:
            log.warning("files of %s may be left: %s", work.claim.job.id, error)

    def full(self, quantum_s: float) -> tuple[float, list[Held]]:
        """Return the seconds until a slot is free by itself, and what may be preempted.

        0: who knows.

        Args:
            quantum_s: that they have run for.
        """
        works = [work for work in self._tasks if work.places.pictures]
        left = {work: work.seconds_left or 0.0 for work in works}
        held = [
            Held(work.claim.job.id, work.claim.fence, left[work], work.places.pictures)
            for work in works
            if work.may_yield(quantum_s)
        ]
        return min(left.values(), default=0.0), held

    async def put_aside(self, job_id: str, for_id: str, time_s: float) -> bool:
        """Give a job back with all that is done of it, for another one to have its places.

        Whether it was: a job that cannot be kept in that time goes on.
        """
        for work in self._tasks:
            if work.claim.job.id == job_id:
                with about(**work.claim.job.log_fields):
                    return await self._put_aside(work, for_id, time_s)
        return False

    async def _put_aside(self, work: JobRunner, for_id: str, time_s: float) -> bool:
        if not await work.put_aside_whole(time_s):
            return False
        # Released first: whatever happens to this task, nobody waits for the lease to lapse.
        claim, spent = work.claim, work.bill.spent
        release = partial(self._queue.release, claim, preempted=True, spent=spent)
        is_ours = await until_reached(release)
        self.drop_job(claim.job.id)
        if is_ours:
            log.info("job %s was put aside for %s", claim.job.id, for_id)
        return is_ours

    async def clear(self, time_s: float, aside_s: float) -> None:
        """Wait until no job is left.

        What ends in that time may end, and the rest is put aside as soon as that is known, for
        other pools to go on with.

        Args:
            aside_s: for putting one aside.
        """
        until = time.monotonic() + time_s
        await asyncio.gather(*(self._clear(work, until, aside_s) for work in list(self._tasks)))

    async def _clear(self, work: JobRunner, until: float, aside_s: float) -> None:
        task = self._tasks[work]
        while not task.done() and work.ends_within(until - time.monotonic()):
            await asyncio.wait([task], timeout=LOOK_EVERY_S)
        if not (task.done() or work.is_ending):
            await work.put_aside(aside_s)
            await self._give_back(work, task)

    async def emptied(self) -> None:
        """Wait until no job is left, those that are about to end too. None may come meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def give_back(self) -> None:
        """Stop all work and release the jobs, unharmed, for other pools."""
        held = list(self._tasks.items())
        await asyncio.gather(*(self._give_back(work, task) for work, task in held))
        await self._snapshot_store.stop()

    async def _give_back(self, work: JobRunner, task: asyncio.Task[str]) -> None:
        await cancel(task)
        await self._release(work.claim, work.bill.spent)

    async def _release(self, claim: Claim, spent: Spent) -> None:
        with about(**claim.job.log_fields):
            if await until_reached(partial(self._queue.release, claim, spent=spent)):
                log.info("job %s was given back", claim.job.id)

    async def _see_through(self, work: JobRunner) -> str:
        """Work on a job; return its state afterwards."""
        job, outcome = work.claim.job, DROPPED
        note(**job.log_fields)
        hide_prompts(job.request)
        with job_spans.attempt(work.claim) as work.span:
            log.info("job %s is worked on", job.id)
            try:
                outcome = await work.run()
            finally:
                log.info("job %s left: %s", job.id, outcome)
                work.span.set({job_spans.OUTCOME: outcome})
        return outcome

    def _let_go(self, work: JobRunner, task: asyncio.Task[str]) -> None:
        """Free what a job holds, however its task has ended, before anybody who waits for that."""
        error = None if task.cancelled() else task.exception()
        if error:
            log.error("job %s ended by an error", work.claim.job.id, exc_info=error)
        outcome = DROPPED if error or task.cancelled() else task.result()
        self.leases.drop(work.claim)
        work.places.leave()
        del self._tasks[work]
        if outcome not in (JobState.SUCCEEDED, JobState.PAUSED):
            if not work.bill.is_settled:
                self._owing.add(work)
            self._snapshot_store.spawn(self._settle(work))
        if work.may_compile or not self._tasks:  # for one that was not to come beside it
            self._queue.look_again(work.claim.job.model)
        metrics.jobs.labels(work.claim.job.model, outcome).inc()

    async def _settle(self, work: JobRunner) -> None:
        """Tell what a job has taken that left; of its compiling, again when that is over."""
        note(**work.claim.job.log_fields)
        await self._tell_spent(work)
        if work in self._owing:
            await work.bill.settled()
            self._owing.remove(work)
            self._queue.look_again(work.claim.job.model)
            await self._tell_spent(work)

    async def _tell_spent(self, work: JobRunner) -> None:
        await until_reached(self._queue.spent, work.claim, work.bill.spent)
