"""The queue: every transition of a job's life, one atomic Lua script each, by Redis's clock.

Each script may be sent twice: a command whose answer got lost with its connection is repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from models.spec import ModelSpec
from service.jobs import connection, events, keys, wire
from service.jobs.costs import CostKey, CostRow, CostTable, PoolFacts
from service.jobs.errors import (
    IdempotencyConflict,
    QueueFull,
    QuotaExceeded,
    UnknownCursor,
    WireError,
)
from service.jobs.events import Event
from service.jobs.job import (
    DEFAULT_TENANT,
    WIRE_VERSION,
    Job,
    JobError,
    JobState,
    Output,
    Snapshot,
    Usage,
)
from service.jobs.outlook import Look
from service.jobs.preemption import FullPool
from service.jobs.scripts import Scripts
from service.jobs.subscriber import Subscriber
from service.settings import QueueSettings, RedisSettings, Settings, TenantSettings

__all__ = [
    "Claim",
    "Event",
    "IdempotencyConflict",
    "ModelStatus",
    "Queue",
    "QueueFull",
    "QuotaExceeded",
    "Standing",
    "UnknownCursor",
    "WireError",
]

MAX_PREVIEWS = 4
"""Of one running job; some kilobytes each, gone when it ends."""
ANSWER_MS = 60_000
"""How long the answer of a call is kept for its repeat: longer than a client goes on trying."""
REAP_BATCH = 200
"""Jobs of one kind that one script takes back, so that it never holds Redis up for long."""
REAP_FILES = 2000
REAPS, RENEWALS = 2, 3
"""In how many of its intervals a reap comes for certain; in how many parts of a lease a pool renews
it. After a longer silence without a reap, leases may have lapsed that nobody could renew."""
LOOKED_AT = 256
"""Running jobs, and urgent ones, of one look at a queue; of more the first ones."""
MAX_COSTS = 4096
"""Rows of one model's table; those measured longest ago leave."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """A pool's hold on one job. `fence` grows with each claim; a stale one is refused."""

    job: Job
    fence: int


@dataclass(frozen=True)
class ModelStatus:
    spec: ModelSpec
    pools: tuple[str, ...]
    """Names of the pools that serve it now (their heartbeat is fresh)."""
    ready: bool
    """At least one of them has finished its warm-up."""


@dataclass(frozen=True)
class Standing:
    """What of its quotas a tenant has taken."""

    queued: int
    device_seconds: float
    """Used within the last hour, or promised to jobs that have not ended."""
    next_s: float
    """Seconds until some of them stop to count."""


NO_LIMITS = TenantSettings()
Claims = list[Claim]
Jobs = list[Job]
Names = list[str]


class Queue:
    """Owns its connections: `close` ends them, and every iterator with them."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        self._redis = redis
        self._settings = settings
        self._scripts = Scripts(redis)
        self._subscriber = Subscriber(redis)
        self._reaped: Names = []
        self._unanswered: dict[str, str] = {}
        """By pool: the claim that it got no answer to."""

    @classmethod
    async def connect(cls, url: str, settings: QueueSettings) -> Queue:
        """Raises: ConfigError where Redis is not there, too old or may evict keys."""
        return cls(await connection.connect(RedisSettings(url=url)), settings)

    @classmethod
    async def open(cls, settings: Settings) -> Queue:
        """The queue of these settings. Raises: ConfigError: as `connect`."""
        return cls(await connection.connect(settings.redis), settings.queue)

    async def close(self) -> None:
        await self._subscriber.close()
        await self._redis.aclose()

    async def ping(self) -> None:
        await self._redis.ping()

    # the front end's side
    async def deposit(self, job_id: str) -> None:
        """Files of this job are about to be stored: if it is never put, `reap` hands them out."""
        await self._run("deposit", id=job_id)

    async def withdraw(self, job_id: str) -> None:
        """The job is not put, and its files are gone."""
        await self._redis.zrem(keys.DEPOSITS, job_id)

    async def put(
        self,
        job: Job,
        *,
        idempotency_key: str | None = None,
        digest: str = "",
        limits: TenantSettings = NO_LIMITS,
        refusal: Exception | None = None,
    ) -> tuple[Job, bool]:
        """The stored job, and whether it is new.

        Args:
            idempotency_key: the client's; of one tenant, for `idempotency_s` while the job is kept.
            digest: of the request's body; the same key with another one is a conflict.
            limits: of the job's tenant.
            refusal: why a new job is not to be taken; what was accepted before is given even so.

        Raises: QueueFull, QuotaExceeded, IdempotencyConflict; the refusal.
        """
        fields = wire.to_hash(job)
        answer, *stored = await self._run(
            "put",
            *(text for pair in fields.items() for text in pair),
            id=job.id,
            model=job.model,
            tenant=job.tenant,
            priority=job.priority,
            priority_s=self._settings.priority_s,
            deadline_at=job.deadline_at,
            run_s=job.run_s,
            max_queued=self._settings.max_queued,
            tenant_max_queued=limits.max_queued,
            device_seconds_per_hour=limits.device_seconds_per_hour,
            cost=job.cost,
            idempotency=_idempotency(job.tenant, idempotency_key),
            idempotency_ms=round(self._settings.idempotency_s * 1000),
            digest=digest,
            refused=refusal is not None,
        )
        if refusal and answer == "refused":
            raise refusal
        if answer == "full":
            raise QueueFull(job.model)
        if answer == "quota":
            raise QuotaExceeded(stored[0], float(stored[1]))
        if answer == "conflict":
            raise IdempotencyConflict
        return wire.from_hash(wire.parse(stored[0])), answer == "new"

    async def standing(self, tenant: str, limits: TenantSettings) -> Standing:
        queued, used, next_s = await self._run(
            "standing",
            tenant=tenant,
            device_seconds_per_hour=limits.device_seconds_per_hour,
        )
        return Standing(queued, float(used), float(next_s))

    async def get(self, job_id: str) -> Job | None:
        """Raises: WireError: a newer Atelier wrote it."""
        return _job(await self._run("get", id=job_id))

    async def list(
        self,
        *,
        tenant: str = DEFAULT_TENANT,
        limit: int,
        after: str | None = None,
        state: JobState | None = None,
    ) -> Jobs:
        """A page of a tenant's jobs, newest first; `after` is the last id of the page before.

        Raises: UnknownCursor: the tenant has no job `after`.
        """
        states = [state] if state else list(JobState)
        page = await self._run("list", tenant=tenant, states=states, limit=limit, after=after)
        if page is None:
            raise UnknownCursor(str(after))
        return [wire.from_hash(wire.parse(text)) for text in page]

    async def outlook(self, model: str) -> Look:
        """One look at what waits and what runs, to estimate waits from."""
        return Look.parse(await self._run("outlook", model=model, looked_at=LOOKED_AT))

    async def rank(self, job: Job) -> int | None:
        """Jobs of its tenant that go before it, by their places; None unless queued."""
        return cast(int | None, await self._redis.zrank(keys.queue(job.model, job.tenant), job.id))

    async def cancel(self, job_id: str) -> Job | None:
        """Idempotent: an ended job is returned as it is."""
        return _job(await self._run("cancel", id=job_id))

    async def delete(self, job_id: str) -> Job | None:
        """Cancels it first if it has not ended. Its files leave at once if the caller deletes them,
        and with the next `reap` otherwise."""
        return _job(await self._run("delete", id=job_id, call=_call(), answer_ms=ANSWER_MS))

    def events(self, job_id: str, after: str = "0") -> AsyncGenerator[Event, None]:
        """Events after that id as they happen; ends after an end state's event, and on `close`."""
        return events.follow(self._redis, self._subscriber, job_id, after)

    async def models(self) -> dict[str, ModelStatus]:
        found = [_status(*row) for row in await self._run("models")]
        return {status.spec.name: status for status in sorted(found, key=lambda s: s.spec.name)}

    async def depths(self) -> dict[str, tuple[int, int]]:
        """Jobs that are queued and that are running, by registered model."""
        return {model: (queued, running) for model, queued, running in await self._run("depths")}

    async def costs(self, model: str) -> CostTable:
        """What pools have measured."""
        rows, pools = await self._run("costs", model=model)
        return CostTable(
            {CostKey.parse(name): _cost_row(text) for name, text in _pairs(rows)},
            {name: PoolFacts(**json.loads(text)) for name, text in _pairs(pools)},
        )

    # the pools' side
    async def register(
        self, pool: str, spec: ModelSpec, *, ready: bool, facts: PoolFacts | None = None
    ) -> None:
        """Announce a pool and its model; a heartbeat too, so call it every `lease_s` / 3."""
        await self._run(
            "register",
            spec.model_dump_json(),
            pool=pool,
            model=spec.name,
            ready=ready,
            fresh_s=self._settings.lease_s,
            facts=facts and asdict(facts),
        )

    async def unregister(self, pool: str, model: str) -> None:
        await self._run("unregister", pool=pool, model=model)

    async def measured(self, model: str, rows: Mapping[CostKey, CostRow]) -> None:
        """Tell what was measured; rows of the same keys are replaced."""
        told = [(key.wire(), row.model_dump(exclude={"at"})) for key, row in rows.items()]
        await self._run("measured", model=model, rows=told, max_rows=MAX_COSTS)

    async def claim(
        self,
        pool: str,
        model: str,
        slots: int,
        *,
        wait_s: float = 0.0,
        warm: Sequence[str] = (),
        slowness: float = 1.0,
    ) -> Claims:
        """The job whose turn it is, and compatible ones of all tenants by turns, up to `slots`
        pictures (a first job of more pictures than that is claimed alone). Waits for a first one.

        Args:
            warm: buckets that the pool has compiled; another pool's wait for it a little.
            slowness: how many times as long a job takes here as on the fastest pool that is there.
        """
        if slots < 1:
            return []
        until = asyncio.get_running_loop().time() + wait_s
        once = partial(
            self._claim_now,
            pool=pool,
            model=model,
            slots=slots,
            warm=list(warm),
            slowness=slowness,
        )
        claims = await self._or_release(once)
        if claims or wait_s <= 0:
            return claims
        with self._subscriber.waking(keys.QUEUED, model) as wake:
            while not claims and not self._subscriber.closed:
                wake.clear()
                claims = await self._or_release(once)
                if not claims and not await _set_before(wake, until):
                    break
        return claims

    async def _or_release(self, once: Callable[[], Coroutine[Any, Any, Claims]]) -> Claims:
        """One try; what it took is given back if the caller is cancelled meanwhile."""
        call = asyncio.ensure_future(once())
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            for claim in await call:
                await self.release(claim)
            raise

    async def _claim_now(self, **wanted: Any) -> Claims:
        """A claim without an answer may have been carried out: the pool's next one repeats it."""
        pool, model = wanted["pool"], wanted["model"]
        call = self._unanswered.pop(pool, None) or _call()
        try:
            found = await self._run(
                "claim",
                call=call,
                answer_ms=ANSWER_MS,
                version=WIRE_VERSION,
                lease_s=self._settings.lease_s,
                warm_s=self._settings.affinity_s,
                credit_s=self._settings.deadline_credit_s,
                **wanted,
            )
        except (RedisError, OSError):
            self._unanswered[pool] = call
            raise
        if found and found[-1] == "newer":
            logger.warning("a job of %r needs a newer pool than %r: upgrade it", model, pool)
            found.pop()
        return [_claim(wire.parse(text)) for text in found]

    async def preempt(self, full: FullPool, ratio: float, room_s: float) -> tuple[str, str] | None:
        """The id of the job that a full pool should put aside and release, and of the one that its
        next claim takes then; None: there is none.

        Args:
            ratio: how many times as long as the one that waits takes, at least, it would be until
                a slot is free by itself.
            room_s: how long no other pool makes room for that one.
        """
        pair = await self._run(
            "preempt",
            **asdict(full),
            ratio=ratio,
            room_s=room_s,
            version=WIRE_VERSION,
            warm_s=self._settings.affinity_s,
            credit_s=self._settings.deadline_credit_s,
        )
        return (pair[0], pair[1]) if pair else None

    async def renew(self, claims: Sequence[Claim]) -> Claims:
        """Extend the leases; returns the claims that are no longer ours (lost, canceled)."""
        held = [(claim.job.id, claim.fence) for claim in claims]
        lost = await self._run("renew", claims=held, lease_s=self._settings.lease_s)
        return [claims[number - 1] for number in lost]

    async def progress(
        self, claim: Claim, step: int, steps: int, preview: str | None = None
    ) -> bool:
        """False: no longer ours. `preview` is a data URI."""
        shown = {"step": step, "steps": steps, "preview": preview}
        texts = [json.dumps(shown)] if preview else []
        return await self._held(
            "progress", claim, *texts, step=step, steps=steps, max_previews=MAX_PREVIEWS
        )

    async def snapshot(self, claim: Claim, snapshots: Sequence[Snapshot]) -> bool:
        """Keep how far its pictures are, each named once, in place of what was kept before: whose
        files `reap` hands out. False: no longer ours; what was stored for it may be deleted."""
        return await self._held("snapshot", claim, wire.snapshots_json(snapshots))

    async def finish(self, claim: Claim, outputs: Sequence[Output], usage: Usage) -> bool:
        """False: no longer ours; what was stored for it may be deleted."""
        return await self._held(
            "finish", claim, wire.outputs_json(outputs), usage.model_dump_json()
        )

    async def fail(self, claim: Claim, error: JobError, *, retry: bool = False) -> JobState | None:
        """With retry it goes back to the queue, until `max_attempts`. None: no longer ours."""
        state = await self._run(
            "fail",
            error.model_dump_json(),
            id=claim.job.id,
            fence=claim.fence,
            retry=retry,
            max_attempts=self._settings.max_attempts,
        )
        return JobState(state) if state else None

    async def release(self, claim: Claim, *, preempted: bool = False) -> bool:
        """Give it back unharmed: to its old place in the queue, the attempt not counted.

        Args:
            preempted: for a job that should go before it: it has not waited while it ran.
        """
        return await self._held("release", claim, preempted=preempted or None)

    async def canceled(self) -> AsyncGenerator[str, None]:
        """Ids of running jobs as they are canceled or expire, for pools to drop them within one
        step. None of them is repeated: what a lost connection swallows, `renew` and `progress`
        tell. Ends on `close`."""
        with self._subscriber.feed(keys.STOPPED) as stopped:
            while (job_id := await stopped.get()) is not None:
                yield job_id

    async def reap(self) -> Names:
        """Take back jobs whose lease lapsed, expire those past their deadline, forget those past
        their retention, and models that no pool serves any more past theirs.

        Returns: store keys to delete (one that ends in / stands for all below it). The next call
            tells Redis that they are deleted; until then any process may be given them again.
        """
        max_deaths = min(self._settings.max_deaths, self._settings.max_attempts)
        poisonous = JobError(code="poisonous", message=_poisonous(max_deaths))
        more, done = True, self._reaped
        while more:
            more, self._reaped = await self._run(
                "reap",
                poisonous.model_dump_json(),
                batch=REAP_BATCH,
                files=REAP_FILES,
                deleted=done,
                lease_s=self._settings.lease_s,
                silence_s=self._silence_s,
                max_deaths=max_deaths,
                deposit_s=self._settings.deposit_s,
                retention_s=self._settings.retention_s,
                model_retention_s=self._settings.model_retention_s,
            )
            done = []
        return self._reaped

    @property
    def _silence_s(self) -> float:
        settings = self._settings
        return max(REAPS * settings.reap_every_s, settings.lease_s / RENEWALS)

    async def _held(self, script: str, claim: Claim, *texts: str, **args: Any) -> bool:
        """A transition that only the holder of a claim may make; whether it was."""
        return bool(await self._run(script, *texts, id=claim.job.id, fence=claim.fence, **args))

    async def _run(self, script: str, *texts: str, **args: Any) -> Any:
        return await self._scripts.run(
            script,
            *texts,
            max_events=self._settings.max_events,
            advance_s=self._settings.priority_advance_s,
            **args,
        )


def _call() -> str:
    """Names one call, so that its repeat is known."""
    return secrets.token_hex(8)


def _idempotency(tenant: str, key: str | None) -> str | None:
    return key and f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


@lru_cache(maxsize=MAX_COSTS)
def _cost_row(text: str) -> CostRow:
    return CostRow.model_validate_json(text)


def _job(text: str | None) -> Job | None:
    return wire.from_hash(wire.parse(text)) if text else None


def _claim(fields: dict[str, str]) -> Claim:
    return Claim(wire.from_hash(fields), int(fields["fence"]))


def _status(spec: str, *pools: str) -> ModelStatus:
    return ModelStatus(_spec(spec), tuple(sorted(pools[::2])), "ready" in pools[1::2])


@lru_cache(maxsize=256)
def _spec(text: str) -> ModelSpec:
    return ModelSpec.model_validate_json(text)


def _poisonous(deaths: int) -> str:
    return (
        f"{deaths} times a pool died or stalled with this job, which got no further in between; "
        "try it smaller, or ask the operator to look at the pools' logs"
    )


async def _set_before(wake: asyncio.Event, until: float) -> bool:
    try:
        async with asyncio.timeout_at(until):
            return await wake.wait()
    except TimeoutError:
        return False
