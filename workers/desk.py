"""Desk: the jobs that a pool works on now, each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from service.jobs.outputs import Store
from service.jobs.queue import Claim, Queue
from service.jobs.tasks import cancel
from workers import metrics
from workers.engine import Engine
from workers.lease import Leases
from workers.progress import Progress
from workers.retry import until_reached
from workers.room import Room
from workers.work import Work

log = logging.getLogger(__name__)


class Desk:
    """Takes claims, and gives them up: to their end, to whom they belong now, or back."""

    def __init__(
        self,
        engine: Engine,
        queue: Queue,
        store: Store,
        room: Room,
        lease_s: float,
        preview_every_s: float,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._store = store
        self._room = room
        self._preview_every_s = preview_every_s
        self.leases = Leases(queue, lease_s, self.drop)
        self._tasks: dict[Work, asyncio.Task[None]] = {}

    @property
    def jobs(self) -> int:
        return len(self._tasks)

    def take(self, claim: Claim) -> None:
        """Begin to work on a claim."""
        job, queue, engine = claim.job, self._queue, self._engine
        self.drop_job(job.id)  # an earlier claim of the same job: it has lapsed, or we had no other
        progress = Progress(queue, claim, engine, self._preview_every_s, self.drop)
        work = Work(claim, engine, queue, self._store, progress, self._room.enter(job.images))
        self.leases.hold(claim)
        self._tasks[work] = asyncio.create_task(self._see_through(work), name=job.id)
        metrics.claims.labels(job.model).inc()

    def drop(self, claim: Claim) -> None:
        """It is no longer ours: its rows leave with the next step, and nobody need be told."""
        self._drop(work for work in self._tasks if work.claim is claim)

    def drop_job(self, job_id: str) -> None:
        """As `drop`, by the job's id."""
        self._drop(work for work in self._tasks if work.claim.job.id == job_id)

    def _drop(self, works: Iterable[Work]) -> None:
        for work in works:
            if not work.is_ending:  # otherwise it is about to hear for itself what became of it
                self._tasks[work].cancel()

    async def empty(self) -> None:
        """Until no job is left."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def give_back(self) -> None:
        """Stop all work and release the jobs, unharmed, for other pools."""
        claims = [work.claim for work in self._tasks]
        await cancel(*self._tasks.values())
        await asyncio.gather(*(self._release(claim) for claim in claims))

    async def _release(self, claim: Claim) -> None:
        if await until_reached(self._queue.release, claim):
            log.info("job %s was given back", claim.job.id)

    async def _see_through(self, work: Work) -> None:
        job, outcome = work.claim.job, "dropped"
        try:
            outcome = await work.run()
        finally:
            self.leases.drop(work.claim)
            work.places.leave()
            del self._tasks[work]
            metrics.jobs.labels(job.model, outcome).inc()
