"""Random histories of many jobs against a real server: each call's answer, and after each call all
that the server holds, are those of a plain model (`queue_model.py`)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from redis.asyncio import Redis

from models.spec import Limits, ModelSpec
from service.jobs import connection
from service.jobs.errors import IdempotencyConflict, QueueFull, QuotaExceeded
from service.jobs.job import PRIORITIES, Job, JobState, Snapshot, Usage
from service.jobs.life import QUEUED
from service.jobs.queue import Claim, Queue
from service.settings import QueueSettings, RedisSettings, TenantSettings
from tests.service.eventually import eventually
from tests.service.jobs.audit import Dump, dump
from tests.service.jobs.examples import FAILURE, a_job, a_snapshot, an_output
from tests.service.jobs.life_model import Life
from tests.service.jobs.order_model import Offer
from tests.service.jobs.queue_model import Model
from tests.service.jobs.repeating import Repeating

MODELS, BUCKETS, TENANTS = ("m", "m:m"), ("a", "b:a"), ("t", "t:t", "u")
"""Names that run into each other if one takes keys apart at their colons."""
STEPS = 4
COSTS = (0.5, 1.0, 4.0)
WEIGHTS = (0.5, 1.0, 2.0)
"""Powers of two: every tag is a number that Redis and Python write down alike."""
UNENDED = 14
"""Jobs at the same time: fewer than a claim looks at."""
LAPSED_S, LONG_S = 1e-6, 3600
"""What is over by the next call, and what is not however long a busy machine takes."""
SOON_S = 0.03
"""Time for some calls before a deadline passes; how many they are is all one."""
FAR_S = 1000
DEADLINES = {
    "none": (None, None),
    "far": (FAR_S, 1),
    "long": (FAR_S, 300),
    "unknown": (FAR_S, None),
    "soon": (SOON_S, None),
    "hopeless": (FAR_S, 2 * FAR_S),
    "past": (-1, None),
}
"""Seconds until the deadline, and what the job takes of them on the fastest pool."""
SLOWNESS = (1.0, 2.0, 8.0)
"""The last one is too slow for the long ones."""
T = TypeVar("T")

SETTINGS = st.fixed_dictionaries(
    {
        "priority_s": st.sampled_from([0, 600]),
        "priority_advance_s": st.sampled_from([0, 2, 32]),
        "deadline_credit_s": st.sampled_from([1, 0, 300]),
        "max_attempts": st.sampled_from([3, 2, 3, 1]),
        "max_deaths": st.sampled_from([2, 3, 2, 1]),
        "max_events": st.sampled_from([2, 256]),
        "max_queued": st.sampled_from([7, 100]),
    }
)
LIMITS = st.fixed_dictionaries(
    {
        name: st.builds(
            TenantSettings,
            weight=st.sampled_from(WEIGHTS),
            max_queued=st.sampled_from([None, None, 3]),
            device_seconds_per_hour=st.sampled_from([None, 10]),
        )
        for name in TENANTS
    }
)
WISHES = st.fixed_dictionaries(
    {
        "bucket": st.sampled_from(BUCKETS),
        "tenant": st.sampled_from(TENANTS),
        "priority": st.sampled_from(list(PRIORITIES.values())),
        "images": st.sampled_from([1, 1, 1, 2, 3]),
        "cost": st.sampled_from(COSTS),
        "deadline": st.sampled_from(["none"] * 5 + ["soon", "far"] * 3 + list(DEADLINES)),
        "key": st.sampled_from([None] * 5 + ["k"]),
        "digest": st.sampled_from("de"),
        "is_refused": st.sampled_from([False] * 15 + [True]),
    }
)
"""Of a client."""
WHICH = st.integers(0, 99)
"""Of what there is."""
OFFERS = st.lists(
    st.tuples(
        WHICH,
        st.builds(
            Offer,
            slots=st.sampled_from([4, 1, 2, 3]),
            warm=st.lists(st.sampled_from(BUCKETS), max_size=1),
            slowness=st.sampled_from(SLOWNESS),
            is_patient=st.booleans(),
        ),
    ),
    min_size=1,
    max_size=2,
)
"""Of pools, with the number of a model."""
TWICE = st.sampled_from([False] * 4 + [True])
"""Whether the script is sent a second time."""


class Server:
    """What all histories share: the connections to one server, and what has happened so far."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.seen: Counter[tuple[str, str]] = Counter()
        pool = connection.client(RedisSettings(url=url)).connection_pool
        self.redis = Redis.from_pool(pool)
        self.repeating = Repeating(connection_pool=pool)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def dump(self) -> Dump:
        return self.run(dump(self.redis))

    def close(self) -> None:
        self.run(self.redis.flushall())
        self.run(self.redis.aclose())
        self.runner.close()


class Lives(RuleBasedStateMachine):
    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.server.run(self.server.redis.flushall())
        self.queues: dict[Any, Queue] = {}
        self.given: dict[Any, set[str]] = {}
        """What each of them has to delete from the store."""
        self.claims: list[Claim] = []
        self.count = 0

    @initialize(
        settings=SETTINGS,
        limits=LIMITS,
        registered=st.sets(st.sampled_from(MODELS)),
        wishes=st.lists(WISHES, min_size=3, max_size=6),
    )
    def begin(
        self,
        settings: dict[str, Any],
        limits: dict[str, TenantSettings],
        registered: set[str],
        wishes: list[dict[str, Any]],
    ) -> None:
        self.settings = {**settings, "lease_s": LONG_S}
        self.model = Model(QueueSettings(**settings), limits, self.server.seen)
        self.model.registered = registered
        for model in registered:
            self.server.run(self.queue(False).register("pool", a_spec(model), ready=True))
        self.held = self.checked = self.server.dump()
        self.put(MODELS[0], wishes, False)

    # how calls are made
    def queue(self, twice: bool, **settings: float) -> Queue:
        """With these settings, for one call: whose script is sent twice, or once."""
        self.let_time_pass(twice)  # what passed between the two, nobody could tell
        at = (twice, *settings.items())
        if at not in self.queues:
            redis = self.server.repeating if twice else self.server.redis
            self.queues[at] = Queue(redis, QueueSettings(**{**self.settings, **settings}))
        return self.queues[at]

    def follow(self, call: Coroutine[Any, Any, T]) -> T:
        """Its answer; `held` is what Redis holds after it.

        Of a deadline that passed meanwhile, only what the script did can say whether it was before
        the script.
        """
        begun = self.clock()
        answer = self.server.run(call)
        self.held = self.server.dump()
        passed = [end for end in self.ends() if begun < end <= self.held.now]
        self.model.now = max([begun, *(end for end in passed if self.has_expired(end))])
        return answer

    def unended(self) -> int:
        return sum(not life.is_ended for life in self.model.lives.values())

    def ends(self) -> list[float]:
        """Of unended jobs, when they expire."""
        ends = (life.ends_at for life in self.model.lives.values())
        return [end for end in ends if end is not None]

    def has_expired(self, end: float) -> bool:
        """Whether the script has met a job with that end after it."""
        lives = (life for life in self.model.lives.values() if life.ends_at == end)
        jobs = [self.held.jobs.get(life.job.id) for life in lives]
        return any(job is not None and job["state"] == JobState.EXPIRED for job in jobs)

    def let_time_pass(self, is_late: bool) -> None:
        """Until every deadline that is near has passed, if so."""
        if not is_late:
            return
        soon = self.clock() + 2 * SOON_S
        last = max((end for end in self.ends() if end < soon), default=0)

        async def has_passed() -> bool:
            seconds, micros = await self.server.redis.time()
            return seconds + micros / 1e6 > last

        self.server.run(eventually(has_passed))

    def clock(self) -> float:
        seconds, micros = self.server.run(self.server.redis.time())
        return seconds + micros / 1e6

    def claim_of(self, n: int) -> Claim | None:
        """More often one that is held than one that is stale, whose job may be another's by now."""
        held = [claim for claim in self.claims if self.holds(claim)]
        stale = [claim for claim in self.claims if not self.holds(claim)]
        running = {claim.job.id for claim in held}
        some = held * 3 + stale + 2 * [claim for claim in stale if claim.job.id in running]
        return some[n % len(some)] if some else None

    def holds(self, claim: Claim) -> bool:
        life = self.model.lives.get(claim.job.id)
        return life is not None and life.holds(claim.fence)

    def model_of(self, n: int) -> str | None:
        """One with queued jobs."""
        some = [model for model in MODELS if self.model.order(model).waiting]
        return some[n % len(some)] if some else None

    def life_of(self, n: int) -> Life | None:
        """More often one that has ended."""
        lives = list(self.model.lives.values())
        some = lives + 2 * [life for life in lives if life.is_ended]
        return some[n % len(some)] if some else None

    def tell(self, claim: Claim, call: Coroutine[Any, Any, T]) -> T:
        """What its holder says of it; a stale one changes nothing."""
        before, is_stale = self.held, not self.holds(claim)
        answer = self.follow(call)
        assert not is_stale or self.held.keys == before.keys
        return answer

    # the client
    @rule(
        model=st.sampled_from([MODELS[0], *MODELS]),
        wishes=st.lists(WISHES, min_size=1, max_size=3),
        twice=TWICE,
    )
    def put(self, model: str, wishes: list[dict[str, Any]], twice: bool) -> None:
        for wish in wishes[: max(0, UNENDED - self.unended())]:
            self._put_one(self.queue(twice), self._job(model, wish), wish)

    def _job(self, model: str, wish: dict[str, Any]) -> Job:
        in_s, run_s = DEADLINES[wish["deadline"]]
        now = self.clock()
        self.count += 1
        return a_job(
            id=f"job_{self.count:03}",
            model=model,
            weight=self.model.limits[wish["tenant"]].weight,
            steps=STEPS,
            run_s=run_s,
            deadline_at=in_s and (now + in_s if in_s == SOON_S else int(now) + in_s),
            **{name: wish[name] for name in ("bucket", "tenant", "priority", "images", "cost")},
        )

    def _put_one(self, queue: Queue, job: Job, wish: dict[str, Any]) -> None:
        asked = (wish["key"], wish["digest"], wish["is_refused"])
        expected = self.model.refusal(job, *asked)
        answer = self.follow(self._put(queue, job, *asked))
        assert answer == (expected or "new")
        if expected is None:
            accepted = float(self.held.jobs[job.id]["accepted"])
            assert accepted >= self.model.now * 1e6 - 1  # a microsecond, as a float of seconds
            self.model.accept(job, wish["key"], wish["digest"], accepted)

    async def _put(
        self, queue: Queue, job: Job, key: str | None, digest: str, is_refused: bool
    ) -> str:
        limits = self.model.limits[job.tenant]
        refusal = Refused() if is_refused else None
        try:
            stored, is_new = await queue.put(
                job, idempotency_key=key, digest=digest, limits=limits, refusal=refusal
            )
        except Refused:
            return "refused"
        except QueueFull:
            return "full"
        except IdempotencyConflict:
            return "conflict"
        except QuotaExceeded as error:
            assert error.wait_s >= 0
            return error.quota
        if not is_new:
            assert stored.id == self.model.idempotent[job.tenant, str(key)][1]
        return "new" if is_new else "old"

    @rule(n=WHICH, is_deleted=st.booleans(), twice=TWICE)
    def stop(self, n: int, is_deleted: bool, twice: bool) -> None:
        life, queue = self.life_of(n), self.queue(twice)
        if not life:
            return
        call, script = (queue.delete, "delete") if is_deleted else (queue.cancel, "cancel")
        answer = self.follow(call(life.job.id))
        self.model.cancel(life, script)
        assert answer and answer.state is life.state
        if is_deleted:
            self.model.forget(life, script)
            assert self.server.run(queue.delete(life.job.id)) is None

    @rule(tenant=st.sampled_from(TENANTS), state=st.sampled_from([None, *JobState]))
    def look(self, tenant: str, state: JobState | None) -> None:
        """What a client sees of its jobs: pages of lists, places, what its quotas hold."""
        queue, lives = self.queue(False), self.model.of(tenant, *([state] if state else []))
        newest = sorted(lives, key=lambda life: -life.accepted)
        for at, life in enumerate(newest):
            after = newest[at - 1].job.id if at else None
            page = self.server.run(queue.list(tenant=tenant, limit=1, after=after, state=state))
            assert [job.id for job in page] == [life.job.id]
        for life in lives:
            rank = self.server.run(queue.rank(life.job))
            before = self.model.order(life.job.model).of(tenant)
            assert rank == (before.index(life) if life.state is QUEUED else None)
        standing = self.server.run(queue.standing(tenant, self.model.limits[tenant]))
        assert standing.queued == len(self.model.of(tenant, QUEUED))
        assert standing.device_seconds == self.model.spent(tenant)

    # the pools
    @rule(offers=OFFERS, twice=TWICE)
    def claim(self, offers: list[tuple[int, Offer]], twice: bool) -> None:
        for n, offer in offers:
            self._claim(self.queue(twice, **patience(offer)), n, offer, False)

    @rule(
        offers=OFFERS,
        step=st.integers(0, STEPS),
        kept=st.lists(st.integers(0, STEPS), max_size=2),
        is_reaped=st.booleans(),
        twice=TWICE,
    )
    def claim_and_stall(
        self,
        offers: list[tuple[int, Offer]],
        step: int,
        kept: list[int],
        is_reaped: bool,
        twice: bool,
    ) -> None:
        """Some work, and not a word more; the leases are over, though only a `reap` sees it."""
        for n, offer in offers:
            queue = self.queue(twice, **patience(offer), lease_s=LAPSED_S)
            for claim in self._claim(queue, n, offer, True):
                self._snapshot(claim, kept, twice)
                self._progress(claim, step, None, twice)
        if is_reaped:
            self.reap(False, twice)

    def _claim(self, queue: Queue, n: int, offer: Offer, lapses: bool) -> list[Claim]:
        model = self.model_of(n)
        if not model:
            return []
        pool, how = f"pool-{len(self.claims)}", {"warm": offer.warm, "slowness": offer.slowness}
        claims = self.follow(queue.claim(pool, model, offer.slots, **how))
        touched = [name for name, job in self.held.jobs.items() if job["state"] == "expired"]
        touched += [claim.job.id for claim in claims]
        taken = self.model.claim(model, pool, offer, touched)
        for life in taken:
            life.has_lapsed = lapses
        assert [claim.job.id for claim in claims] == [life.job.id for life in taken]
        assert [claim.fence for claim in claims] == [life.fence for life in taken]
        self.claims += claims
        return claims

    @rule(n=WHICH, used_s=st.sampled_from([0.0, 0.5, 8.0]), twice=TWICE)
    def finish(self, n: int, used_s: float, twice: bool) -> None:
        """As every end of a claim: not always the first one."""
        claim, queue = self.claim_of(n), self.queue(twice)
        if not claim:
            return
        outputs, usage = [an_output(claim.job)], Usage(steps=STEPS, device_seconds=used_s)
        answer = self.tell(claim, queue.finish(claim, outputs, usage))
        assert answer == self.model.finish(claim, outputs, usage)

    @rule(n=WHICH, how=st.sampled_from(["retry", "release", "fail"]), twice=TWICE)
    def give_up(self, n: int, how: str, twice: bool) -> None:
        claim, queue = self.claim_of(n), self.queue(twice)
        if not claim:
            return
        if how == "release":
            assert self.tell(claim, queue.release(claim)) == self.model.release(claim)
        else:
            state = self.tell(claim, queue.fail(claim, FAILURE, retry=how == "retry"))
            assert state == self.model.fail(claim, FAILURE.code, how == "retry")

    @rule(
        n=WHICH,
        step=st.integers(1, STEPS),
        preview=st.sampled_from([None, "data:,"]),
        is_late=st.booleans(),
        twice=TWICE,
    )
    def progress(self, n: int, step: int, preview: str | None, is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        if claim := self.claim_of(n):
            self._progress(claim, step, preview, twice)

    def _progress(self, claim: Claim, step: int, preview: str | None, twice: bool) -> None:
        answer = self.tell(claim, self.queue(twice).progress(claim, step, STEPS, preview))
        shown = {"step": step, "steps": STEPS, "preview": preview} if preview else None
        assert answer == self.model.progress(claim, step, shown)

    @rule(
        n=WHICH,
        steps=st.lists(st.integers(0, STEPS), max_size=2),
        is_late=st.booleans(),
        twice=TWICE,
    )
    def snapshot(self, n: int, steps: list[int], is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        if claim := self.claim_of(n):
            self._snapshot(claim, steps, twice)

    def _snapshot(self, claim: Claim, steps: list[int], twice: bool) -> None:
        """Pictures that are finished have files of their own and no state."""
        kept = [a_snapshot(claim, index, step) for index, step in enumerate(steps)]
        kept = [finished(one, claim) if one.step == STEPS else one for one in kept]
        answer = self.tell(claim, self.queue(twice).snapshot(claim, kept))
        assert answer == self.model.snapshot(claim, kept)

    @rule(
        ns=st.lists(WHICH, min_size=1, max_size=3),
        lapses=st.booleans(),
        is_late=st.booleans(),
        twice=TWICE,
    )
    def renew(self, ns: list[int], lapses: bool, is_late: bool, twice: bool) -> None:
        self.let_time_pass(is_late)
        claims = list({id(claim): claim for claim in map(self.claim_of, ns) if claim}.values())
        lasting = {"lease_s": LAPSED_S} if lapses else {}
        lost = self.follow(self.queue(twice, **lasting).renew(claims))
        assert lost == self.model.renew(claims, lapses)

    # the clock
    @rule(forgets=st.booleans(), twice=TWICE)
    def reap(self, forgets: bool, twice: bool) -> None:
        leases = self.held.keys.get("leases", {})
        retention = {"retention_s": LAPSED_S} if forgets else {}
        queue = self.queue(twice, **retention)
        answer = set(self.follow(queue.reap()))
        for _ in range(1 + twice):
            expected = self.model.reap(leases, self.given.pop(queue, set()), forgets)
        assert answer == expected
        self.given[queue] = answer

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        if self.held is not self.checked:
            self.model.check(self.held)
            self.checked = self.held

    def teardown(self) -> None:
        """When all jobs are gone, nothing of them is left."""
        if not hasattr(self, "held"):
            return
        queue = self.queue(False, retention_s=LAPSED_S)

        async def end() -> None:
            for name in self.held.jobs:
                await queue.cancel(name)
            for _ in range(2):
                await queue.reap()

        self.server.run(end())
        left = {name.partition(":")[0] for name in self.server.dump().keys}
        assert left <= {"models", "pools", "used", "call"}, left


class Refused(Exception):
    """By the front end, which predicts that the job's deadline will not be met."""


def patience(offer: Offer) -> dict[str, float]:
    return {"affinity_s": LONG_S if offer.is_patient else 0}


def finished(snapshot: Snapshot, claim: Claim) -> Snapshot:
    return snapshot.model_copy(update={"key": None, "outputs": (an_output(claim.job),)})


def a_spec(name: str) -> ModelSpec:
    return ModelSpec(
        name=name,
        family="flux",
        tasks=("text-to-image",),
        fields=frozenset({"prompt"}),
        defaults={},
        limits=Limits(
            size_multiple_px=16,
            min_side_px=16,
            max_side_px=128,
            max_pixels=128 * 128,
            max_steps=50,
            max_images=4,
            max_sequence_length=64,
        ),
        bucket_fields=(),
        fingerprint="0123",
    )
