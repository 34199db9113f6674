"""Submission of jobs: stored fields, rejections, and idempotency keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import PRIORITIES, JobState
from service.jobs.queue import IdempotencyConflict, Queue, QueueFull
from service.jobs.redis.keys import PREFIX
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL, a_job


async def test_put_stores_the_whole_job(queue: Queue) -> None:
    job = a_job(
        tenant="acme",
        priority=PRIORITIES["high"],
        deadline_at=time.time() + 60,
        request={"prompt": 'ein "roter" Kreis \ud800 /é', "seed": 2**64 - 1, "sigmas": [1.0, 0.5]},
        images=3,
        metadata={"a": "b"},
    )
    stored, new = await queue.put(job)
    assert new
    assert await queue.get(job.id) == stored
    assert stored == job.model_copy(update={"created_at": stored.created_at})
    assert abs(stored.created_at - time.time()) < 60  # one machine's clock, written and read


async def test_unknown_job(queue: Queue) -> None:
    assert await queue.get("job_nope") is None
    assert await queue.rank(a_job()) is None


async def test_position_counts_jobs_of_the_model_ahead(queue: Queue) -> None:
    low = (await queue.put(a_job(priority=PRIORITIES["low"])))[0]
    first = (await queue.put(a_job()))[0]
    second = (await queue.put(a_job(bucket="128x128")))[0]
    other = (await queue.put(a_job(model="other")))[0]
    high = (await queue.put(a_job(priority=PRIORITIES["high"])))[0]
    positions = [await queue.rank(job) for job in (high, first, second, low, other)]
    assert positions == [0, 1, 2, 3, 0]
    await queue.claim("pool", MODEL, 1)
    assert await queue.rank(high) is None
    assert await queue.rank(first) == 0


async def test_clock_set_back_keeps_the_order(queue: Queue, empty_redis: Redis) -> None:
    first, _ = await queue.put(a_job())
    ahead_us = (first.created_at + 3600) * 1_000_000  # as if accepted before the clock was set back
    await empty_redis.zadd(f"{PREFIX}jobs", {first.id: ahead_us})
    later = [(await queue.put(a_job()))[0] for _ in range(3)]
    times = [job.created_at for job in later]
    assert times == sorted(set(times))
    assert times[0] > first.created_at + 3600
    assert [job.id for job in await queue.list(limit=9)] == [
        job.id for job in [*later[::-1], first]
    ]


async def test_full_queue_rejects_jobs_of_that_model(connect: Connect) -> None:
    queue = await connect(max_queued=2)
    job = a_job()
    for each in (job, a_job()):
        await queue.put(each)
    with pytest.raises(QueueFull, match=MODEL):
        await queue.put(a_job())
    await queue.put(a_job(model="other"))
    await queue.cancel(job.id)
    await queue.put(a_job())


async def test_full_queue_admits_tenants_below_their_share(
    connect: Connect,
) -> None:
    queue = await connect(max_queued=6)
    for tenant, places in [("heavy", 6), ("light", 3), ("late", 2)]:
        for _ in range(places):
            await queue.put(a_job(tenant=tenant))
        with pytest.raises(QueueFull):
            await queue.put(a_job(tenant=tenant))
    with pytest.raises(QueueFull):
        await queue.put(a_job(tenant="light"))


async def test_queue_limit_holds_for_concurrent_puts(connect: Connect) -> None:
    queue = await connect(max_queued=5)
    answers = await asyncio.gather(*(queue.put(a_job()) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 15
    assert len(await queue.list(limit=100)) == 5


async def test_idempotency_key_returns_the_first_job(queue: Queue) -> None:
    first, new = await queue.put(a_job(), idempotency_key="k", digest="d")
    again, newer = await queue.put(a_job(), idempotency_key="k", digest="d")
    assert (new, newer) == (True, False)
    assert again == first
    await queue.cancel(first.id)
    ended, _ = await queue.put(a_job(), idempotency_key="k", digest="d")
    assert (ended.id, ended.state) == (first.id, JobState.CANCELED)
    assert len(await queue.list(limit=10)) == 1


async def test_the_same_key_with_another_body_is_refused(queue: Queue) -> None:
    await queue.put(a_job(), idempotency_key="k", digest="d")
    with pytest.raises(IdempotencyConflict):
        await queue.put(a_job(), idempotency_key="k", digest="e")
    assert len(await queue.list(limit=10)) == 1


async def test_known_idempotency_key_is_answered_by_a_full_queue(connect: Connect) -> None:
    queue = await connect(max_queued=1)
    first, _ = await queue.put(a_job(), idempotency_key="k", digest="d")
    assert await queue.put(a_job(), idempotency_key="k", digest="d") == (first, False)


async def test_tenants_do_not_share_keys(queue: Queue) -> None:
    first, _ = await queue.put(a_job(tenant="a"), idempotency_key="k", digest="d")
    second, new = await queue.put(a_job(tenant="b"), idempotency_key="k", digest="e")
    assert new
    assert first.id != second.id


async def test_concurrent_puts_with_one_key_create_one_job(connect: Connect) -> None:
    queues = [await connect() for _ in range(2)]
    answers = await asyncio.gather(
        *(queues[i % 2].put(a_job(), idempotency_key="k", digest="d") for i in range(30))
    )
    assert Counter(new for _, new in answers) == {True: 1, False: 29}
    assert len({job.id for job, _ in answers}) == 1


async def test_idempotency_key_is_deleted_with_its_job(queue: Queue) -> None:
    first, _ = await queue.put(a_job(), idempotency_key="k", digest="d")
    await queue.delete(first.id)
    second, new = await queue.put(a_job(), idempotency_key="k", digest="e")
    assert new
    assert (await queue.get(second.id)) == second


async def test_deleted_job_keeps_the_key_of_a_newer_one(connect: Connect, queue: Queue) -> None:
    brief = await connect(idempotency_s=0.001)
    old, _ = await brief.put(a_job(), idempotency_key="k", digest="d")
    new = False
    while not new:  # the old key lasts a millisecond
        young, new = await queue.put(a_job(), idempotency_key="k", digest="d")
    await queue.delete(old.id)
    assert await queue.put(a_job(), idempotency_key="k", digest="d") == (young, False)
