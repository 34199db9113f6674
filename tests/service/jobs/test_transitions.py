"""Calls of a claim's holder and of clients, and calls that are rejected."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import Job, JobState
from service.jobs.queue import Claim, Queue
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import (
    FAILURE,
    MODEL,
    USAGE,
    a_job,
    a_snapshot,
    an_output,
    let_expire,
)


async def claimed(queue: Queue, **fields: object) -> Claim:
    await queue.put(a_job(**fields))
    (claim,) = await queue.claim("pool", MODEL, 1)
    return claim


async def test_finish(queue: Queue) -> None:
    claim = await claimed(queue)
    outputs = [an_output(claim.job)]
    assert await queue.finish(claim, outputs, USAGE)
    job = await queue.get(claim.job.id)
    assert job.state is JobState.SUCCEEDED
    assert (job.outputs, job.usage, job.error) == (outputs, USAGE, None)
    assert job.finished_at >= job.started_at


async def test_fail_for_good(queue: Queue) -> None:
    claim = await claimed(queue)
    assert await queue.fail(claim, FAILURE) is JobState.FAILED
    job = await queue.get(claim.job.id)
    assert (job.state, job.error, job.attempts) == (JobState.FAILED, FAILURE, 1)


async def test_fail_and_retry_until_the_last_attempt(connect: Connect) -> None:
    queue = await connect(max_attempts=3)
    job, _ = await queue.put(a_job())
    answers = []
    for _ in range(3):
        (claim,) = await queue.claim("pool", MODEL, 1)
        answers.append(await queue.fail(claim, FAILURE, retry=True))
    assert answers == [JobState.QUEUED, JobState.QUEUED, JobState.FAILED]
    ended = await queue.get(job.id)
    assert (ended.state, ended.error, ended.attempts) == (JobState.FAILED, FAILURE, 3)
    assert await queue.claim("pool", MODEL, 1) == []


async def test_released_job_keeps_its_position(queue: Queue) -> None:
    claim = await claimed(queue)
    behind, _ = await queue.put(a_job())
    await queue.progress(claim, 5, 28)
    assert await queue.release(claim)
    job = await queue.get(claim.job.id)
    assert (job.state, job.attempts, job.started_at) == (JobState.QUEUED, 0, None)
    assert (job.step, job.steps) == (0, 28)
    order = [claim.job.id for claim in await queue.claim("pool", MODEL, 2)]
    assert order == [job.id, behind.id]


async def test_progress(queue: Queue) -> None:
    claim = await claimed(queue)
    assert await queue.progress(claim, 3, 30)
    job = await queue.get(claim.job.id)
    assert (job.state, job.step, job.steps) == (JobState.RUNNING, 3, 30)


async def test_progress_past_the_deadline_expires(queue: Queue) -> None:
    claim = await claimed(queue)
    await let_expire(queue, claim.job.id)
    assert not await queue.progress(claim, 1, 28)
    job = await queue.get(claim.job.id)
    assert job.state is JobState.EXPIRED
    assert job.finished_at >= job.deadline_at
    assert not await queue.finish(claim, [], USAGE)


async def test_renew_returns_lost_claims(queue: Queue) -> None:
    current = await claimed(queue)
    stopped = await claimed(queue)
    late = await claimed(queue)
    await queue.cancel(stopped.job.id)
    await let_expire(queue, late.job.id)
    assert await queue.renew([current, stopped, late]) == [stopped, late]
    assert (await queue.get(late.job.id)).state is JobState.EXPIRED
    assert await queue.renew([]) == []


async def test_renew_distinguishes_stale_and_current_claims(queue: Queue) -> None:
    stale = await claimed(queue)
    await queue.release(stale)
    (held,) = await queue.claim("pool", MODEL, 1)
    assert await queue.renew([stale, held]) == [stale]


async def test_renew_keeps_a_job_from_the_reaper(connect: Connect, hasty: Queue) -> None:
    queue = await connect()
    await queue.put(a_job())
    (claim,) = await hasty.claim("pool", MODEL, 1)
    assert await queue.renew([claim]) == []
    await queue.reap()
    assert (await queue.get(claim.job.id)).state is JobState.RUNNING


async def ended_by(queue: Queue, how: str) -> Claim:
    claim = await claimed(queue)
    match how:
        case "finish":
            await queue.finish(claim, [], USAGE)
        case "fail":
            await queue.fail(claim, FAILURE)
        case "cancel":
            await queue.cancel(claim.job.id)
        case "delete":
            await queue.delete(claim.job.id)
        case "release":
            await queue.release(claim)
        case "retry":
            await queue.fail(claim, FAILURE, retry=True)
        case "another claim":
            await queue.release(claim)
            await queue.claim("other", MODEL, 1)
    return claim


ENDINGS = ("finish", "fail", "cancel", "delete", "release", "retry", "another claim")
CALLS: dict[str, Callable[[Queue, Claim], Awaitable[object]]] = {
    "finish": lambda queue, claim: queue.finish(claim, [an_output(claim.job)], USAGE),
    "fail": lambda queue, claim: queue.fail(claim, FAILURE),
    "release": lambda queue, claim: queue.release(claim),
    "progress": lambda queue, claim: queue.progress(claim, 9, 28, "data:,x"),
    "snapshot": lambda queue, claim: queue.snapshot(claim, [a_snapshot(claim)]),
}
REPEATS = {("finish", "finish"), ("fail", "fail"), ("release", "release"), ("retry", "fail")}
"""(end, call) of the same claim's own repeat, which gets the same response again."""


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_stale_claim_changes_nothing(queue: Queue, how: str, call: str) -> None:
    claim = await ended_by(queue, how)
    before = await queue.get(claim.job.id)
    answer = await CALLS[call](queue, claim)
    if (how, call) not in REPEATS | {("another claim", "release")}:
        assert not answer
    assert await queue.get(claim.job.id) == before
    assert await queue.renew([claim]) == [claim]


async def state(queue: Queue, job: Job) -> JobState:
    current = await queue.get(job.id)
    assert current is not None
    return current.state


async def test_cancel_a_queued_job(queue: Queue) -> None:
    job, _ = await queue.put(a_job())
    canceled = await queue.cancel(job.id)
    assert canceled.state is JobState.CANCELED
    assert canceled == await queue.get(job.id)
    assert await queue.rank(job) is None
    assert await queue.claim("pool", MODEL, 1) == []


async def test_cancel_a_running_job(queue: Queue) -> None:
    claim = await claimed(queue)
    assert (await queue.cancel(claim.job.id)).state is JobState.CANCELED
    assert not await queue.progress(claim, 1, 28)
    assert not await queue.finish(claim, [], USAGE)
    assert await state(queue, claim.job) is JobState.CANCELED


@pytest.mark.parametrize("how", ["finish", "fail", "cancel"])
async def test_cancel_does_not_change_an_ended_job(queue: Queue, how: str) -> None:
    claim = await ended_by(queue, how)
    before = await queue.get(claim.job.id)
    assert await queue.cancel(claim.job.id) == before
    assert await queue.get(claim.job.id) == before


async def test_cancel_an_unknown_job(queue: Queue) -> None:
    assert await queue.cancel("job_nope") is None


@pytest.mark.parametrize("how", ["queued", "finish", "cancel", "another claim"])
async def test_delete_leaves_nothing(queue: Queue, empty_redis: Redis, how: str) -> None:
    if how == "queued":
        job, _ = await queue.put(a_job(deadline_at=time.time() + 60), idempotency_key="k")
    else:
        job = (await ended_by(queue, how)).job
    deleted = await queue.delete(job.id)
    assert deleted.state.ended
    assert await queue.get(job.id) is None
    assert await queue.delete(job.id) is None
    assert await queue.list(limit=10) == []
    assert await queue.claim("pool", MODEL, 1) == []
    await queue.reap(await queue.reap())  # reports the returned store keys as deleted
    left = {key for key in await empty_redis.keys("*") if key.split(":")[1] not in ("call", "left")}
    stays = {"reaped", "ledger", "totals", "history"}
    assert left <= {f"{{atelier}}:{name}" for name in stays}, "keys that belong to no job"
