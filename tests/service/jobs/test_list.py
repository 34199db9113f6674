"""Pages of jobs, newest first."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import JobState
from service.jobs.queue import Queue, UnknownCursor
from tests.service.jobs.examples import MODEL, a_job


async def put(queue: Queue, n: int) -> list[str]:
    return [(await queue.put(a_job()))[0].id for _ in range(n)]


async def walk(queue: Queue, limit: int, state: JobState | None = None) -> list[str]:
    found: list[str] = []
    while page := await queue.list(limit=limit, after=found[-1] if found else None, state=state):
        assert len(page) <= limit
        found += [job.id for job in page]
    return found


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_cover_all_newest_first(queue: Queue, limit: int) -> None:
    ids = await put(queue, 7)
    assert await walk(queue, limit) == ids[::-1]


async def test_pages_hold_still_while_jobs_come_in(queue: Queue) -> None:
    ids = await put(queue, 6)
    page = await queue.list(limit=3)
    await put(queue, 5)
    rest = await queue.list(limit=100, after=page[-1].id)
    assert [job.id for job in [*page, *rest]] == ids[::-1]


async def test_one_state(queue: Queue) -> None:
    ids = await put(queue, 6)
    await queue.claim("pool", MODEL, 2)
    await queue.cancel(ids[3])
    assert await walk(queue, 1, JobState.RUNNING) == [ids[1], ids[0]]
    assert await walk(queue, 2, JobState.QUEUED) == [ids[5], ids[4], ids[2]]
    assert await walk(queue, 2, JobState.CANCELED) == [ids[3]]
    assert await walk(queue, 2, JobState.FAILED) == []


async def test_a_cursor_may_be_in_another_state(queue: Queue) -> None:
    ids = await put(queue, 4)
    (first,) = await queue.list(limit=1, state=JobState.QUEUED)
    await queue.cancel(first.id)
    rest = await queue.list(limit=10, after=first.id, state=JobState.QUEUED)
    assert [job.id for job in rest] == ids[2::-1]


async def test_tenants_list_their_own(queue: Queue) -> None:
    for i in range(9):
        await queue.put(a_job(tenant=f"t{i % 2}", metadata={"i": str(i)}))
    await queue.claim("pool", MODEL, 4)
    for tenant, mine in (("t0", [8, 6, 4, 2, 0]), ("t1", [7, 5, 3, 1]), ("t", [])):
        jobs = await queue.list(tenant=tenant, limit=10)
        assert [int(job.metadata["i"]) for job in jobs] == mine
    (theirs,) = await queue.list(tenant="t1", limit=1)
    with pytest.raises(UnknownCursor, match=theirs.id):
        await queue.list(tenant="t0", limit=1, after=theirs.id)


async def test_nothing_is_left_of_a_tenant_that_has_gone(queue: Queue, empty_redis: Redis) -> None:
    jobs = [(await queue.put(a_job(tenant="t")))[0] for _ in range(3)]
    await queue.claim("pool", MODEL, 1)
    for job in jobs:
        await queue.delete(job.id)
    assert [key for key in await empty_redis.keys() if key.endswith(":t")] == []


async def test_an_unknown_cursor_is_refused(queue: Queue) -> None:
    await put(queue, 1)
    with pytest.raises(UnknownCursor, match="job_nope"):
        await queue.list(limit=1, after="job_nope")
