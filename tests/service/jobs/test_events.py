"""Events of a job: order, resumption, trimming, previews, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import Job
from service.jobs.queue import Claim, Event, Queue, StageReport
from tests.service.jobs.conftest import Connect, subscribers
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job


async def collect(queue: Queue, job: Job, after: str = "0") -> list[Event]:
    async with asyncio.timeout(10):
        return [event async for event in queue.events(job.id, after)]


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


async def finished(queue: Queue, steps: int = 3) -> Job:
    job, _ = await queue.put(a_job(steps=steps))
    (claim,) = await queue.claim("pool", MODEL, 1)
    for step in range(1, steps + 1):
        await queue.progress(claim, step, steps)
    await queue.finish(claim, [], USAGE)
    return job


async def test_complete_event_stream(queue: Queue) -> None:
    job = await finished(queue, steps=2)
    assert await collect(queue, job) == [
        Event("1", "queued", {}),
        Event("2", "running", {"pool": "pool", "attempt": 1}),
        Event("3", "progress", {"step": 1, "steps": 2}),
        Event("4", "progress", {"step": 2, "steps": 2}),
        Event("5", "succeeded", {}),
    ]


async def cancel(queue: Queue, claim: Claim) -> None:
    await queue.cancel(claim.job.id)


async def fail(queue: Queue, claim: Claim) -> None:
    await queue.fail(claim, FAILURE)


async def delete(queue: Queue, claim: Claim) -> None:
    await queue.delete(claim.job.id)


@pytest.mark.parametrize(
    ("end", "name", "data"),
    [
        (cancel, "canceled", {}),
        (delete, "canceled", {}),
        (fail, "failed", {"error": FAILURE.model_dump()}),
    ],
)
async def test_events_are_delivered_while_they_happen(
    connect: Connect, end: Callable[[Queue, Claim], Awaitable[None]], name: str, data: object
) -> None:
    front, pool = await connect(), await connect()
    job, _ = await front.put(a_job())
    received: list[Event] = []
    started = asyncio.Event()

    async def follow() -> None:
        async for event in front.events(job.id):
            received.append(event)
            if event.name == "running":
                started.set()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        (claim,) = await pool.claim("pool", MODEL, 1)
        await started.wait()
        await end(pool, claim)
    assert names(received) == ["queued", "running", name]
    assert received[-1].data == data


async def test_reclaimed_job_emits_a_queued_event(queue: Queue, hasty: Queue) -> None:
    job, _ = await queue.put(a_job())
    await hasty.claim("dead", MODEL, 1)
    await queue.reap()
    (claim,) = await queue.claim("alive", MODEL, 1)
    await queue.finish(claim, [], USAGE)
    received = await collect(queue, job)
    assert names(received) == ["queued", "running", "queued", "running", "succeeded"]
    assert received[3].data == {"pool": "alive", "attempt": 2}


async def test_resume_after_any_event(queue: Queue) -> None:
    job = await finished(queue)
    everything = await collect(queue, job)
    for i, event in enumerate(everything):
        assert await collect(queue, job, event.id) == everything[i + 1 :]


@pytest.mark.parametrize("odd", ["", "-1", "x", "1-0", "99", "9" * 40, "٣", "*", "+", "0"])
async def test_an_odd_id_starts_at_the_beginning(queue: Queue, odd: str) -> None:
    job = await finished(queue)
    assert names(await collect(queue, job, odd))[0] == "queued"


async def test_trimmed_stream_returns_the_remaining_events(connect: Connect) -> None:
    queue = await connect(max_events=4)
    job = await finished(queue, steps=20)
    for after in ("0", "1", "5"):
        received = await collect(queue, job, after)
        if after == "0":  # the first event is in no stream
            assert received.pop(0).name == "queued"
        assert names(received) == ["progress"] * 3 + ["succeeded"]
        assert received[0].data == {"step": 18, "steps": 20}


async def test_unknown_jobs_have_no_events(queue: Queue) -> None:
    assert await collect(queue, a_job()) == []


async def test_previews_are_ordered_and_deleted_at_the_end(
    queue: Queue, empty_redis: Redis
) -> None:
    job, _ = await queue.put(a_job())
    (claim,) = await queue.claim("pool", MODEL, 1)
    events = queue.events(job.id)
    for step in range(1, 8):
        await queue.progress(claim, step, 7, f"data:image/png;base64,{step}//")
    received = [await anext(events) for _ in range(2 + 7 + 4)]
    await events.aclose()
    assert [int(event.id) for event in received] == sorted(int(event.id) for event in received)
    previews = [event for event in received if event.name == "preview"]
    assert [event.data for event in previews] == [
        {"step": step, "steps": 7, "preview": f"data:image/png;base64,{step}//"}
        for step in (4, 5, 6, 7)
    ]
    assert names(received)[-2:] == ["progress", "preview"]
    await queue.finish(claim, [], USAGE)
    assert "preview" not in names(await collect(queue, job))
    assert await empty_redis.keys("*previews*") == []


async def test_many_followers_share_one_connection(queue: Queue, empty_redis: Redis) -> None:
    job, _ = await queue.put(a_job())
    followers = [asyncio.create_task(collect(queue, job)) for _ in range(30)]
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.progress(claim, 1, 28)
    connections = await subscribers(empty_redis)
    await queue.finish(claim, [], USAGE)
    received = await asyncio.gather(*followers)
    assert len(connections) == 1
    assert {tuple(names(events)) for events in received} == {
        ("queued", "running", "progress", "succeeded")
    }


async def test_closing_the_queue_ends_its_iterators(connect: Connect) -> None:
    queue, other = await connect(), await connect()
    job, _ = await queue.put(a_job(model="another"))

    async def stopped() -> list[str]:
        return [job_id async for job_id in queue.canceled()]

    waits: list[asyncio.Task[list[Any]]] = [
        asyncio.create_task(collect(queue, job)),
        asyncio.create_task(stopped()),
        asyncio.create_task(queue.claim("pool", MODEL, 1, wait_s=60)),
    ]
    assert names([await anext(queue.events(job.id))]) == ["queued"]
    await queue.close()
    events, ids, claims = await asyncio.wait_for(asyncio.gather(*waits), 10)
    assert (names(events), ids, claims) == (["queued"], [], [])
    assert await other.get(job.id) == job


async def test_workers_are_notified_of_cancellations(connect: Connect, empty_redis: Redis) -> None:
    front, pool = await connect(), await connect()
    canceled, deleted, finished, queued = [(await front.put(a_job()))[0] for _ in range(4)]
    claims = await pool.claim("pool", MODEL, 3)
    stopped = pool.canceled()
    notified = [asyncio.ensure_future(anext(stopped))]
    await subscribers(empty_redis)
    await pool.finish(claims[2], [], USAGE)
    for job in (finished, queued, canceled):  # no worker runs the first two
        await front.cancel(job.id)
    async with asyncio.timeout(10):
        await notified[0]
        await front.delete(deleted.id)
        notified.append(asyncio.ensure_future(anext(stopped)))
        assert [await job_id for job_id in notified] == [canceled.id, deleted.id]
    await stopped.aclose()


async def test_activity_is_in_events_and_job_state(queue: Queue) -> None:
    job = a_job()
    await queue.put(job)
    (claim,) = await queue.claim("pool", job.model, 1)
    for _ in range(2):
        assert await queue.progress(claim, 0, 28, None, StageReport("compiling", 38.5))
    current = await queue.get(job.id)
    assert current and current.detail
    assert (current.detail.stage, current.detail.expected_s) == ("compiling", 38.5)
    await queue.progress(claim, 1, 28, None, StageReport("denoising"))
    await queue.release(claim)
    assert (await queue.get(job.id)).detail is None
    await queue.cancel(job.id)
    progress = [event.data async for event in queue.events(job.id) if event.name == "progress"]
    assert progress == [
        {"step": 0, "steps": 28, "detail": {"stage": "compiling", "expected_s": 38.5}},
        {"step": 1, "steps": 28, "detail": {"stage": "denoising"}},
    ]
