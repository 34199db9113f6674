"""What the reaper takes back, ends and forgets; nothing leaks."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from models.spec import ModelSpec
from service.jobs.job import JobState
from service.jobs.queue import Queue
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, an_output


async def test_a_lapsed_job_goes_back_to_its_place(queue: Queue, hasty: Queue) -> None:
    first, _ = await queue.put(a_job())
    second, _ = await queue.put(a_job())
    (claim,) = await hasty.claim("dead", MODEL, 1)
    await hasty.progress(claim, 7, 28)
    await queue.reap()
    job = await queue.get(first.id)
    assert (job.state, job.step, job.started_at) == (JobState.QUEUED, 0, None)
    assert not await hasty.finish(claim, [], USAGE)
    again = await queue.claim("alive", MODEL, 2)
    assert [claim.job.id for claim in again] == [first.id, second.id]
    assert again[0].job.attempts == 2
    assert await queue.finish(again[0], [], USAGE)


async def test_a_job_that_is_lost_too_often_fails(connect: Connect) -> None:
    hasty = await connect(lease_s=1e-6, max_attempts=2)
    job, _ = await hasty.put(a_job())
    for _ in range(2):
        assert await hasty.claim("dead", MODEL, 1)
        await hasty.reap()
    ended = await hasty.get(job.id)
    assert (ended.state, ended.attempts) == (JobState.FAILED, 2)
    assert ended.error.code == "lost"
    assert await hasty.claim("dead", MODEL, 1) == []


async def test_late_jobs_expire(queue: Queue) -> None:
    running, _ = await queue.put(a_job(deadline_at=time.time() + 0.2))
    await queue.claim("pool", MODEL, 1)
    queued, _ = await queue.put(a_job(deadline_at=time.time() - 1))
    good, _ = await queue.put(a_job(deadline_at=time.time() + 60))
    states = [JobState.RUNNING]
    while JobState.RUNNING in states:  # its deadline is 0.2 s away
        await queue.reap()
        states = [(await queue.get(job.id)).state for job in (running, queued, good)]
    assert states == [JobState.EXPIRED, JobState.EXPIRED, JobState.QUEUED]


async def test_more_than_one_batch(connect: Connect) -> None:
    hasty = await connect(lease_s=1e-6)
    for _ in range(450):
        await hasty.put(a_job())
    assert len(await hasty.claim("dead", MODEL, 450)) == 450
    await hasty.reap()
    assert len(await hasty.list(limit=1000, state=JobState.QUEUED)) == 450


async def test_store_keys_are_given_until_they_are_deleted(queue: Queue, connect: Connect) -> None:
    await queue.put(a_job())
    (claim,) = await queue.claim("pool", MODEL, 1)
    output = an_output(claim.job)
    await queue.finish(claim, [output], USAGE)
    assert await queue.reap() == []
    dies, lives = [await connect(retention_s=1e-6) for _ in range(2)]
    files = {output.key, f"inputs/{claim.job.id}/", f"outputs/{claim.job.id}/"}
    assert set(await dies.reap()) == files
    assert set(await lives.reap()) == files  # the first never said that it had deleted them
    assert await lives.reap() == []
    assert await queue.get(claim.job.id) is None


async def test_nothing_leaks(
    queue: Queue, hasty: Queue, empty_redis: Redis, a_spec: ModelSpec
) -> None:
    """After every kind of life and the retention, only the models are left."""
    await queue.register("pool", a_spec, ready=True)
    for i in range(9):
        await queue.put(
            a_job(images=1 + i % 2, deadline_at=time.time() + 60),
            idempotency_key=f"key {i}",
            digest="d",
        )
    await queue.put(a_job(deadline_at=time.time() - 1))
    finish, fail, cancel, release, retry = await queue.claim("pool", MODEL, 7)
    await hasty.claim("dead", MODEL, 2)
    await queue.progress(finish, 1, 28, "data:,preview")
    await queue.finish(finish, [an_output(finish.job)], USAGE)
    await queue.fail(fail, FAILURE)
    await queue.cancel(cancel.job.id)
    await queue.progress(release, 1, 28, "data:,preview")
    await queue.release(release)
    await queue.fail(retry, FAILURE, retry=True)
    await hasty.reap()
    for job in await queue.list(limit=100):
        await queue.cancel(job.id)
    await queue.unregister("pool", a_spec.name)
    await hasty.reap()
    await hasty.reap()
    assert {key for key in await empty_redis.keys("*") if ":call:" not in key} == {
        "{atelier}:models"
    }
    lives = [await empty_redis.pttl(key) for key in await empty_redis.keys("*:call:*")]
    assert lives
    assert all(0 < life <= 60_000 for life in lives)  # a minute, for repeats


@pytest.mark.parametrize("ends", [True, False])
async def test_only_ended_jobs_are_forgotten(queue: Queue, hasty: Queue, ends: bool) -> None:
    job, _ = await queue.put(a_job())
    await queue.claim("pool", MODEL, 1)
    if ends:
        await queue.cancel(job.id)
    assert bool(await hasty.reap()) is ends
    assert (await queue.get(job.id) is None) is ends
