"""Checker of random histories: after each call it compares all of Redis with the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant
from redis.asyncio import Redis

from models.spec.model_spec import Limits, ModelSpec
from service.jobs.model.job import JobState
from service.jobs.model.state_machine import RUNNING
from service.jobs.queue import Claim, Queue
from service.jobs.redis import connection
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.tenants import TenantSettings
from tests.service.eventually import eventually
from tests.service.jobs.audit import Dump, dump
from tests.service.jobs.job_model import Life
from tests.service.jobs.queue_model import Model
from tests.service.jobs.repeating import Repeating
from tests.service.jobs.strategies import LAPSED_S, LONG_S, MODELS, POOLS, SOON_S

T = TypeVar("T")
OUTLIVING = {"models", "seen", "reaped", "history", "pools", "ledger", "totals"}
"""Kinds of keys that remain without jobs."""


class Server:
    """State shared by all histories: connections to one server, and the transitions seen so far."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.observed: Counter[tuple[str, str]] = Counter()
        self.contradicted = 0
        """Number of calls by a stale claim whose job another claim held."""
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


class History(RuleBasedStateMachine):
    """State machine that runs calls and compares their effects with the model; `Lives` adds the
    calls."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.server.run(self.server.redis.flushall())
        self.queues: dict[Any, Queue] = {}
        self.returned: set[str] = set()
        """Store keys that the last reap returned for deletion."""
        self.claims: list[Claim] = []
        self.count = 0

    def start(
        self, settings: dict[str, Any], limits: dict[str, TenantSettings], registered: set[str]
    ) -> None:
        self.settings = {**settings, "lease_s": LONG_S}
        self.model = Model(QueueSettings(**settings), limits, self.server.observed)
        self.model.registered = registered
        for model in registered:
            for pool in POOLS:
                self.server.run(self.queue(False).register(pool, a_spec(model), ready=True))
        self.held = self.checked = self.server.dump()

    # how calls are made
    def queue(self, twice: bool, **settings: float) -> Queue:
        """Queue with these settings for one call, which sends its script twice or once."""
        # No deadline may pass between the two scripts: its effect would be undecidable.
        self.let_time_pass(twice)
        key = (twice, *settings.items())
        if key not in self.queues:
            redis = self.server.repeating if twice else self.server.redis
            self.queues[key] = Queue(redis, QueueSettings(**{**self.settings, **settings}))
        return self.queues[key]

    def follow(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call, store Redis's new contents in `held`, and return the call's result.

        If a deadline passed meanwhile, the script's effect shows whether the script ran after it.
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
        """Expiry times of unended jobs."""
        ends = (life.ends_at for life in self.model.lives.values())
        return [end for end in ends if end is not None]

    def has_expired(self, end: float) -> bool:
        """Return whether the script has expired a job with that expiry time."""
        lives = (life for life in self.model.lives.values() if life.ends_at == end)
        jobs = [self.held.jobs.get(life.job.id) for life in lives]
        return any(job is not None and job["state"] == JobState.EXPIRED for job in jobs)

    def let_time_pass(self, is_late: bool) -> None:
        """Wait until every near deadline has passed, if `is_late`."""
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
        """Choose the n-th claim: mostly a claim that still holds its job, often a late job.

        Others are stale; another claim may hold their job.
        """
        holding = [claim for claim in self.claims if self.holds(claim)]
        stale = [claim for claim in self.claims if not self.holds(claim)]
        running, now = {claim.job.id for claim in holding}, self.clock()
        late = [claim for claim in holding if self.model.lives[claim.job.id].is_late(now)]
        replaced = [claim for claim in stale if claim.job.id in running]
        kinds = [kind for kind in (holding, late, late, holding, replaced, holding, stale) if kind]
        some = kinds[n % len(kinds)] if kinds else []
        return some[n // len(kinds) % len(some)] if some else None

    def holds(self, claim: Claim) -> bool:
        life = self.model.lives.get(claim.job.id)
        return life is not None and life.holds(claim.fence)

    def model_of(self, n: int) -> str | None:
        """Choose the n-th model with queued jobs."""
        some = [model for model in MODELS if self.model.order(model).waiting]
        return some[n % len(some)] if some else None

    def life_of(self, n: int) -> Life | None:
        """Choose the n-th job, preferably an ended one."""
        lives = list(self.model.lives.values())
        some = lives + 2 * [life for life in lives if life.is_ended]
        return some[n % len(some)] if some else None

    def run_as_holder(self, claim: Claim, call: Coroutine[Any, Any, T]) -> T:
        """Run a claim holder's call, and assert that a stale claim changes nothing."""
        before, is_stale = self.held, not self.holds(claim)
        life = self.model.lives.get(claim.job.id)
        self.server.contradicted += is_stale and life is not None and life.state is RUNNING
        answer = self.follow(call)
        assert not is_stale or self.held.keys == before.keys
        return answer

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        if self.held is not self.checked:
            self.model.check(self.held)
            self.checked = self.held

    def teardown(self) -> None:
        """Cancel and reap all jobs; no key of them remains."""
        if not hasattr(self, "held"):
            return
        queue = self.queue(False, retention_s=LAPSED_S)

        async def end() -> None:
            for name in self.held.jobs:
                await queue.cancel(name)
            await queue.reap(await queue.reap())

        self.server.run(end())
        left = {name.partition(":")[0] for name in self.server.dump().keys}
        assert left <= {*OUTLIVING, "used", "left", "call"}, left


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
