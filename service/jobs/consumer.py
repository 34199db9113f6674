"""Claims: workers take jobs from the queue, and make room for more urgent ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.jobs.claim_reports import Claim, ClaimList, ClaimReports
from service.jobs.model import serialization
from service.jobs.model.job import WIRE_VERSION
from service.jobs.model.ledger import Origin
from service.jobs.model.preemption import FullPool
from service.jobs.redis import keys
from service.jobs.redis.tasks import ended
from service.jobs.scripts.client import ANSWER_MS, new_call
from service.jobs.scripts.script import Script
from service.settings.queue import QueueSettings

logger = logging.getLogger(__name__)


class ClaimResult(NamedTuple):
    """Jobs that a worker's call claimed."""

    jobs: list[dict[str, str]]
    """Hashes of the jobs, including fields that only the scripts use."""
    skipped_newer: bool
    """True if a job of a newer wire version was skipped."""


@dataclass(frozen=True)
class ClaimJobs(Script[ClaimResult]):
    """Script call that claims jobs for a worker. The last three fields are set for each attempt."""

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
        skips_newer = answer[-1:] == ["newer"]
        texts = answer[:-1] if skips_newer else answer
        return ClaimResult([serialization.parse(text) for text in texts], skips_newer)


class Preemption(NamedTuple):
    """Preemption that a full worker should carry out: the job to release and its successor."""

    preempted: str
    """Id of the job that it should release."""
    waiting: str
    """Id of the job that its next claim then takes."""


@dataclass(frozen=True, kw_only=True)
class Preempt(FullPool, Script[Preemption | None]):
    """Script call that selects a job to preempt on a full worker; last fields as in `ClaimJobs`."""

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


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """State of a claiming worker, which decides the jobs that it gets.

    The three functions are called before each attempt, since a claim may wait.
    """

    warm: Sequence[str] = ()
    """Buckets that it has compiled. Jobs of other buckets wait a little for a worker that has."""
    adapters: Sequence[str] = ()
    """Digests of adapters on its device. Jobs with others wait a little."""
    slowness: float = 1.0
    """Duration of a job here relative to the fastest ready worker."""
    slowness_in: Mapping[str, float] = field(default_factory=dict)
    """The same for single buckets."""
    origin: Origin = field(default_factory=Origin)
    """Origin of its outputs for the ledger. Its checkpoint fingerprint is stored in the jobs."""
    busy: Callable[[], bool] = lambda: False
    """Whether it has other jobs now. A busy worker gets no job that crashed a worker."""
    may_compile: Callable[[], bool] | None = None
    """Whether it now takes a job of a cold bucket, which it then claims alone; None: cold buckets
    are treated as any other."""
    has_room: Callable[[], bool] = lambda: True
    """Whether it still takes jobs; if not, `Consumer.claim` stops waiting."""


IDLE = WorkerState()
"""A worker without compiled programs, adapters and jobs, as fast as the fastest."""


class Consumer(ClaimReports):
    """Part of a `Queue` with which workers claim jobs."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._unanswered: dict[str, str] = {}
        """Id of each worker's claim call that got no answer."""

    async def claim(
        self, pool: str, model: str, slots: int, worker: WorkerState = IDLE, *, wait_s: float = 0.0
    ) -> ClaimList:
        """Claim the next job and, from all tenants in turn, jobs of the same bucket.

        The claimed jobs have up to `slots` images in total. A first job with more images than that
        is claimed alone. Waits up to `wait_s` for a first job.
        """
        if slots < 1:
            return []
        until = asyncio.get_running_loop().time() + wait_s
        script = partial(
            ClaimJobs,
            pool=pool,
            model=model,
            slots=slots,
            version=WIRE_VERSION,
            lease_s=self._settings.lease_s,
            warm=list(worker.warm),
            rides_wait=worker.may_compile is not None,
            warm_s=self._settings.affinity_s,
            adapters=list(worker.adapters),
            slowness=worker.slowness,
            slowness_in=dict(worker.slowness_in),
            room_s=self._settings.lease_s,
            credit_s=self._settings.deadline_credit_s,
            answer_ms=ANSWER_MS,
            origin=worker.origin,
        )
        attempt = partial(self._claim_now, script, pool, model, worker)
        claims = await self._release_if_canceled(attempt)
        if claims or wait_s <= 0:
            return claims
        with self._subscriber.waking(keys.QUEUED, model) as wake:
            while not claims and worker.has_room() and not self._subscriber.closed:
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
            await ended(asyncio.create_task(self._release_all(call)))
            raise

    async def _release_all(self, call: asyncio.Future[ClaimList]) -> None:
        for claim in await call:
            await self.release(claim)

    async def _claim_now(
        self, script: Callable[..., ClaimJobs], pool: str, model: str, worker: WorkerState
    ) -> ClaimList:
        """Attempt a claim without waiting.

        If the last claim of this worker got no answer, repeat that call: it may have been executed.
        """
        if not worker.has_room():
            return []
        call = self._unanswered.pop(pool, None) or new_call()
        may = worker.may_compile is None or worker.may_compile()
        try:
            claimed = await self.run(script(call=call, busy=worker.busy(), may_compile=may))
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
        return await self.run(
            Preempt(
                **vars(full),
                ratio=ratio,
                room_s=room_s,
                version=WIRE_VERSION,
                warm_s=self._settings.affinity_s,
                credit_s=self._settings.deadline_credit_s,
            )
        )

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
