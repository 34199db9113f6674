"""Snapshots of a running job: only its current claim records them, and they are deleted with its
end."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from tests.service.jobs.examples import (
    FAILURE,
    MODEL,
    USAGE,
    a_job,
    a_snapshot,
    an_output,
    let_expire,
)


async def test_a_later_claim_finds_it(queue: Queue) -> None:
    await queue.put(a_job(images=2))
    (claim,) = await queue.claim("pool", MODEL, 2)
    finished = a_snapshot(claim, 0, 14).model_copy(
        update={"key": None, "outputs": (an_output(claim.job),), "device_seconds": 1.5}
    )
    snapshots = [finished, a_snapshot(claim, 1, 6)]
    await queue.progress(claim, 21, 28)
    assert await queue.snapshot(claim, snapshots)
    await queue.release(claim)
    (again,) = await queue.claim("other", MODEL, 2)
    assert again.job.snapshots == snapshots
    assert again.job.step == 14 + 6, "the steps in snapshots"


async def test_replaced_snapshot_is_deleted(queue: Queue) -> None:
    await queue.put(a_job(images=2))
    (claim,) = await queue.claim("pool", MODEL, 2)
    first, second = a_snapshot(claim, 0, 3), a_snapshot(claim, 1, 4)
    later = a_snapshot(claim, 0, 9)
    await queue.snapshot(claim, [first, second])
    assert await queue.reap() == []
    await queue.snapshot(claim, [later, second])
    assert await queue.reap() == [first.key]
    assert (await queue.get(claim.job.id)).snapshots == [later, second]


async def test_a_stale_pool_keeps_nothing(queue: Queue, hasty: Queue) -> None:
    await queue.put(a_job())
    (stale,) = await hasty.claim("stopped", MODEL, 1)
    await hasty.reap()
    (claim,) = await queue.claim("pool", MODEL, 1)
    snapshots = [a_snapshot(claim, step=9)]
    assert await queue.snapshot(claim, snapshots)
    assert not await queue.snapshot(stale, [a_snapshot(stale, step=20)])
    assert (await queue.get(claim.job.id)).snapshots == snapshots
    assert await queue.reap() == []


async def test_not_past_the_deadline(queue: Queue) -> None:
    await queue.put(a_job())
    (claim,) = await queue.claim("pool", MODEL, 1)
    await let_expire(queue, claim.job.id)
    assert not await queue.snapshot(claim, [a_snapshot(claim)])
    assert (await queue.get(claim.job.id)).state is JobState.EXPIRED


@pytest.mark.parametrize("how", ["finish", "fail", "cancel", "delete", "expire"])
async def test_ended_job_accepts_no_snapshot(queue: Queue, how: str) -> None:
    job, _ = await queue.put(a_job())
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await queue.snapshot(claim, [a_snapshot(claim)])
    files: list[str] = []
    match how:
        case "finish":
            await queue.finish(claim, [], USAGE)
        case "fail":
            await queue.fail(claim, FAILURE)
        case "cancel":
            await queue.cancel(job.id)
        case "delete":
            await queue.delete(job.id)
        case "expire":
            await let_expire(queue, job.id)
            files = await queue.reap()
            assert (await queue.get(job.id)).state is JobState.EXPIRED
    assert f"snapshots/{job.id}/" in files + await queue.reap()
    current = await queue.get(job.id)
    assert current is None if how == "delete" else current.snapshots == []
    assert not await queue.snapshot(claim, [a_snapshot(claim)])


async def test_snapshot_is_charged_once(queue: Queue, empty_redis: Redis) -> None:
    """A quarter is resumed and the rest repeated: the charge equals that of an undisturbed job."""

    async def tag() -> float:
        return float(await empty_redis.hget("{atelier}:tags:" + MODEL, "a"))

    await queue.put(a_job(tenant="a", cost=10))
    await queue.put(a_job(tenant="a"))  # so that the tenant stays in the queue
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await tag() == 10
    await queue.snapshot(claim, [a_snapshot(claim, step=7)])
    await queue.progress(claim, 20, 28)
    await queue.release(claim)
    assert await tag() == 2.5, "steps without a snapshot are not charged"
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await tag() == 10
    await queue.finish(claim, [], USAGE.model_copy(update={"device_seconds": 12}))
    assert await tag() == 12
