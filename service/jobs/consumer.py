"""The pools' side of the queue: who is there, what each takes, and what becomes of it."""

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
    Job,
    JobError,
    JobState,
    Output,
    Snapshot,
    Stage,
    Usage,
    Warned,
)
from service.jobs.model.ledger import Delivered, Origin
from service.jobs.model.metrics import End
from service.jobs.model.preemption import FullPool
from service.jobs.redis import keys
from service.jobs.scheduling.cost_model import MAX_COSTS, CostKey, CostRow, PoolFacts
from service.jobs.scripts import consumer
from service.jobs.scripts.client import ANSWER_MS, Calls, new_call
from service.jobs.scripts.consumer import Spent
from service.settings.queue import QueueSettings

MAX_PREVIEWS = 4
"""Maximum number of previews of a running job; some kilobytes each, gone when it ends."""

UNKNOWN = Origin()
NOTHING = Delivered()
NO_BUCKETS: Mapping[str, float] = MappingProxyType({})

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """A pool's hold on one job. `fence` grows with each claim; a stale one is refused."""

    job: Job
    fence: int
    queued_at: float | None = None
    """Time at which it joined or rejoined the queue, by Redis's clock."""
    is_first: bool = False
    """True if nobody has claimed the job before."""


@dataclass(frozen=True)
class Doing:
    """Stage that a pool reports of a job."""

    stage: Stage
    expected_s: float | None = None


Claims = list[Claim]


class Consumer(Calls):
    """Part of a `Queue` that pools use."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        super().__init__(redis, settings)
        self._unanswered: dict[str, str] = {}
        """Unanswered claim of each pool."""

    async def register(
        self, pool: str, spec: ModelSpec, *, ready: bool, facts: PoolFacts | None = None
    ) -> None:
        """Announce a pool and its model; a heartbeat too, so call it every `lease_s` / 3."""
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
        """Withdraw a pool's announcement of its model."""
        await self._run(consumer.Unregister(pool, model))

    async def measured(self, model: str, rows: Mapping[CostKey, CostRow]) -> None:
        """Tell what was measured; rows of the same keys are replaced."""
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
        origin: Origin = UNKNOWN,
    ) -> Claims:
        """Claim the next job, and compatible ones of all tenants by turns.

        Up to `slots` images (a first job of more images than that is claimed alone). Waits for a
        first one.

        Args:
            warm: buckets that the pool has compiled; another pool's wait for it a little.
            adapters: digests of those that the pool's device has; jobs of others wait a little.
            slowness: how many times as long a job takes here as on the fastest pool that is there.
            slowness_in: the same of single buckets.
            busy: whether the pool has other jobs now; then it is given none that a pool died with.
            may_compile: whether it takes a job now whose bucket is not warm, and that one alone;
                None: it takes them as any other.
            has_room: whether it takes anything still; where not, it waits no longer.
            origin: of what it makes, for the ledger; jobs keep its checkpoint's fingerprint.
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
        once = partial(self._claim_now, script, pool, model, busy, may_compile, has_room)
        claims = await self._or_release(once)
        if claims or wait_s <= 0:
            return claims
        with self._subscriber.waking(keys.QUEUED, model) as wake:
            while not claims and has_room() and not self._subscriber.closed:
                wake.clear()
                claims = await self._or_release(once)
                if not claims and not await _set_before(wake, until):
                    break
        return claims

    def look_again(self, model: str) -> None:
        """Let claims of this process that wait look once more: it may have room for others now."""
        self._subscriber.wake(keys.QUEUED, model)

    async def _or_release(self, once: Callable[[], Coroutine[Any, Any, Claims]]) -> Claims:
        """Try once to claim; release what it took if the caller is cancelled meanwhile."""
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
    ) -> Claims:
        """A claim without an answer may have been carried out: the pool's next one repeats it."""
        if not has_room():
            return []
        call = self._unanswered.pop(pool, None) or new_call()
        may = may_compile is None or may_compile()
        try:
            found = await self._run(script(call=call, busy=busy(), may_compile=may))
        except (RedisError, OSError):
            self._unanswered[pool] = call
            raise
        if found.is_newer_there:
            logger.warning("a job of %r needs a newer pool than %r: upgrade it", model, pool)
        claims = [_claim(fields) for fields in found.jobs]
        for claim in claims:
            if claim.is_first:
                self.tally.claimed(claim.job)
        return claims

    async def preempt(self, full: FullPool, ratio: float, room_s: float) -> tuple[str, str] | None:
        """Return the job that a full pool should release, and the one that it claims then.

        None: there is none.

        Args:
            ratio: how many times as long as the one that waits takes, at least, it would be until
                a slot is free by itself.
            room_s: how long no other pool makes room for that one.
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

    async def renew(self, claims: Sequence[Claim], spent: Sequence[Spent] = ()) -> Claims:
        """Extend the leases; returns the claims that are no longer ours (lost, canceled).

        Args:
            spent: by each of the claims; none: nothing is known.
        """
        held: list[consumer.Lease] = [(claim.job.id, claim.fence) for claim in claims]
        if spent:
            held = [(*one[:2], taken) for one, taken in zip(held, spent, strict=True)]
        lost = await self._run(consumer.Renew(held, self._settings.lease_s))
        return [claims[i] for i in lost]

    async def progress(
        self,
        claim: Claim,
        step: int,
        steps: int,
        preview: str | None = None,
        doing: Doing | None = None,
        spent: Spent | None = None,
    ) -> bool:
        """False: no longer ours. `preview` is a data URI."""
        shown = {"step": step, "steps": steps, "preview": preview}
        return await self._run(
            consumer.Progress(
                claim.job.id,
                claim.fence,
                step=step,
                steps=steps,
                stage=doing.stage if doing else None,
                expected_s=doing.expected_s if doing else None,
                max_previews=MAX_PREVIEWS,
                spent=spent,
                preview=json.dumps(shown) if preview else None,
            )
        )

    async def snapshot(self, claim: Claim, snapshots: Sequence[Snapshot]) -> bool:
        """Record how far a job's images are, in place of what was kept before.

        Each is named once; `reap` hands out the files of the former ones. False: no longer ours;
        what was stored for it may be deleted.
        """
        text = serialization.snapshots_json(snapshots)
        return await self._run(consumer.RecordSnapshots(claim.job.id, claim.fence, text))

    async def warn(self, claim: Claim, warnings: Sequence[Warned]) -> bool:
        """Keep these in place of the job's warnings. False: no longer ours."""
        said = serialization.warnings_json(warnings)
        return await self._run(consumer.Warn(claim.job.id, claim.fence, said))

    async def finish(self, claim: Claim, outputs: Sequence[Output], usage: Usage) -> bool:
        """End a job well, or pause an audition, which keeps its snapshots.

        False: no longer ours; what was stored for it may be deleted.

        Args:
            usage: its seconds are this claim's; those of claims before it are added.
        """
        is_paused = claim.job.stop_at_step is not None
        state = JobState.PAUSED if is_paused else JobState.SUCCEEDED
        finished_at = await self._run(
            consumer.Finish(
                claim.job.id,
                claim.fence,
                made=NOTHING if is_paused else Delivered.of(claim.job.request, outputs),
                is_paused=is_paused,
                outputs=serialization.outputs_json(outputs),
                usage=usage.model_dump_json(),
            )
        )
        if finished_at:
            self.tally.ended(End.of(claim.job, state, finished_at))
        return bool(finished_at)

    async def fail(
        self, claim: Claim, error: JobError, *, retry: bool = False, spent: Spent | None = None
    ) -> JobState | None:
        """Fail a job, or requeue it with `retry` until `max_attempts`. None: the claim is lost."""
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
            self.tally.ended(End.of(claim.job, answer.state, answer.finished_at, error.code))
        else:
            self.tally.retried(claim.job.model, error.code)
        return answer.state

    async def release(
        self, claim: Claim, *, preempted: bool = False, spent: Spent | None = None
    ) -> bool:
        """Give it back unharmed: to its old place in the queue, the attempt not counted.

        Args:
            preempted: for a job that should go before it: its place moves by the time that it ran,
                since it has not waited meanwhile.
        """
        return await self._run(consumer.Release(claim.job.id, claim.fence, preempted, spent))

    async def spent(self, claim: Claim, spent: Spent) -> bool:
        """Record what a claim has taken, of one that is over, too.

        Its tenant is charged for it, once however often it is recorded. False: nothing is known of
        the job any more.
        """
        return await self._run(consumer.Spend(claim.job.id, claim.fence, spent))

    async def canceled(self) -> AsyncGenerator[str, None]:
        """Yield ids of running jobs as they are canceled or expire.

        Pools drop them within one step. None of them is repeated: what a lost connection swallows,
        `renew` and `progress` tell. Ends on `close`.
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
    try:
        async with asyncio.timeout_at(until):
            return await wake.wait()
    except TimeoutError:
        return False
