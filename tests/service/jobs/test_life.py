"""The job's life against a plain model of it: any order of calls, by any claim, fresh or stale."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from redis.asyncio import Redis

from service.jobs.job import PRIORITIES, Job, JobState
from service.jobs.queue import Claim, Queue
from service.settings import QueueSettings
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, an_output

MAX_ATTEMPTS = MAX_DEATHS = 2
QUEUED, RUNNING = JobState.QUEUED, JobState.RUNNING


@dataclass
class Life:
    """What should be true of one job."""

    order: int
    job: Job
    state: JobState = QUEUED
    attempts: int = 0
    deaths: int = 0
    fence: int = 0
    lapsed: bool = False
    past: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """By fence: how that claim ended itself, and what it was told."""

    @property
    def place(self) -> tuple[int, int]:
        return -self.job.priority, self.order

    def holds(self, fence: int) -> bool:
        return self.state is RUNNING and self.fence == fence


class Lives(RuleBasedStateMachine):
    url: str
    claims: Bundle[tuple[str, Claim]] = Bundle("claims")
    jobs: Bundle[str] = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.lives: dict[str, Life] = {}
        self.accepted = 0
        self.run(self.open())

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    async def open(self) -> None:
        async with Redis.from_url(self.url) as redis:
            await redis.flushall()
        self.queue = await Queue.connect(self.url, QueueSettings(max_attempts=MAX_ATTEMPTS))
        brief = QueueSettings(max_attempts=MAX_ATTEMPTS, lease_s=1e-6)
        self.hasty = await Queue.connect(self.url, brief)

    def teardown(self) -> None:
        self.run(self.queue.close())
        self.run(self.hasty.close())
        self.runner.close()

    @rule(
        target=jobs,
        priority=st.sampled_from(list(PRIORITIES.values())),
        bucket=st.sampled_from("ab"),
        images=st.integers(1, 3),
        late=st.sampled_from([False] * 5 + [True]),
    )
    def put(self, priority: int, bucket: str, images: int, late: bool) -> str:
        deadline = 1.0 if late else None
        job = a_job(priority=priority, bucket=bucket, images=images, deadline_at=deadline)
        self.run(self.queue.put(job))
        self.accepted += 1
        self.lives[job.id] = Life(self.accepted, job)
        return job.id

    @rule(target=claims, slots=st.integers(1, 4), lapses=st.booleans())
    def claim(self, slots: int, lapses: bool) -> Any:
        queue = self.hasty if lapses else self.queue
        claims = self.run(queue.claim("pool", MODEL, slots))
        assert [claim.job.id for claim in claims] == self.next_jobs(slots)
        for claim in claims:
            life = self.lives[claim.job.id]
            life.state, life.lapsed = RUNNING, lapses
            life.attempts += 1
            life.fence += 1
            assert (claim.job.attempts, claim.fence) == (life.attempts, life.fence)
        return multiple(*((claim.job.id, claim) for claim in claims))

    def next_jobs(self, slots: int) -> list[str]:
        """What a claim should take; whatever it meets past its deadline expires."""
        taken: list[Life] = []
        waiting = [life for life in self.lives.values() if life.state is QUEUED]
        for life in sorted(waiting, key=lambda life: life.place):
            if taken and life.job.bucket != taken[0].job.bucket:
                continue
            if slots <= 0:
                break
            if life.job.deadline_at:
                life.state = JobState.EXPIRED
            elif taken and (life.job.images > slots or life.deaths):
                break
            else:
                taken.append(life)
                slots -= slots if life.deaths else life.job.images
        return [life.job.id for life in taken]

    def expected(self, claim: Claim, act: str, done: Any, refused: Any, state: JobState) -> Any:
        """The answer to a claim's own ending, which happens if it holds the job."""
        life = self.lives.get(claim.job.id)
        if life is None:
            return refused
        if life.holds(claim.fence):
            life.state = state
            life.past[claim.fence] = (act, done)
            return done
        past_act, past_answer = life.past.get(claim.fence, ("", None))
        # Only the last ending is remembered: an older claim's repeat is refused.
        latest = claim.fence == max(life.past, default=0)
        return past_answer if latest and past_act == act else refused

    @rule(held=claims)
    def finish(self, held: tuple[str, Claim]) -> None:
        claim = held[1]
        answer = self.run(self.queue.finish(claim, [an_output(claim.job)], USAGE))
        assert answer == self.expected(claim, "finish", True, False, JobState.SUCCEEDED)

    @rule(held=claims, retry=st.booleans())
    def fail(self, held: tuple[str, Claim], retry: bool) -> None:
        claim = held[1]
        again = retry and claim.job.attempts < MAX_ATTEMPTS
        state = QUEUED if again else JobState.FAILED
        answer = self.run(self.queue.fail(claim, FAILURE, retry=retry))
        assert answer == self.expected(claim, "fail", state, None, state)

    @rule(held=claims)
    def release(self, held: tuple[str, Claim]) -> None:
        claim = held[1]
        life = self.lives.get(claim.job.id)
        if life and life.holds(claim.fence):
            life.attempts -= 1
        answer = self.run(self.queue.release(claim))
        assert answer == self.expected(claim, "release", True, False, QUEUED)

    @rule(held=claims, step=st.integers(1, 28))
    def progress(self, held: tuple[str, Claim], step: int) -> None:
        job_id, claim = held
        life = self.lives.get(job_id)
        answer = self.run(self.queue.progress(claim, step, 28))
        assert answer == bool(life and life.holds(claim.fence))

    @rule(held=claims)
    def renew(self, held: tuple[str, Claim]) -> None:
        job_id, claim = held
        life = self.lives.get(job_id)
        holds = bool(life and life.holds(claim.fence))
        assert self.run(self.queue.renew([claim])) == ([] if holds else [claim])
        if holds:
            self.lives[job_id].lapsed = False

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        answer = self.run(self.queue.cancel(job_id))
        life = self.lives.get(job_id)
        if life and not life.state.ended:
            life.state = JobState.CANCELED
        assert (answer and answer.state) == (life and life.state)

    @rule(job_id=jobs)
    def delete(self, job_id: str) -> None:
        answer = self.run(self.queue.delete(job_id))
        life = self.lives.pop(job_id, None)
        assert (answer is None) == (life is None)

    @rule()
    def reap(self) -> None:
        self.run(self.queue.reap())
        for life in self.lives.values():
            if life.job.deadline_at and not life.state.ended:
                life.state = JobState.EXPIRED
            elif life.state is RUNNING and life.lapsed:
                life.deaths += 1
                life.state = QUEUED if life.deaths < MAX_DEATHS else JobState.FAILED

    @invariant()
    def every_job_is_as_it_should_be(self) -> None:
        jobs = self.run(self.queue.list(limit=1000))
        newest_first = sorted(self.lives.values(), key=lambda life: -life.order)
        assert [(job.id, job.state, job.attempts) for job in jobs] == [
            (life.job.id, life.state, life.attempts) for life in newest_first
        ]

    @rule()
    def every_state_lists_its_own(self) -> None:
        for state in JobState:
            jobs = self.run(self.queue.list(limit=1000, state=state))
            mine = [life.job.id for life in self.lives.values() if life.state is state]
            assert [job.id for job in jobs] == mine[::-1]

    @rule()
    def queued_jobs_know_their_place(self) -> None:
        waiting = [life for life in self.lives.values() if life.state is QUEUED]
        for i, life in enumerate(sorted(waiting, key=lambda life: life.place)):
            assert self.run(self.queue.rank(life.job)) == i


@pytest.mark.usefixtures("empty_redis")
def test_lives(redis_url: str) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Here(Lives):
        url = redis_url

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
