"""Pages of jobs, newest first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import JobState
from service.jobs.model.job_filter import JobFilter
from service.jobs.queue import Queue, UnknownCursor
from service.jobs.stored_jobs import LIST_SCAN_LIMIT
from tests.service.jobs.examples import MODEL, a_job


async def put(queue: Queue, n: int) -> list[str]:
    return [(await queue.put(a_job()))[0].id for _ in range(n)]


async def walk(queue: Queue, limit: int, state: JobState | None = None) -> list[str]:
    ids: list[str] = []
    while page := await queue.list(
        limit=limit, after=ids[-1] if ids else None, only=JobFilter(state=state)
    ):
        assert len(page) <= limit
        ids += [job.id for job in page]
    return ids


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_pages_cover_all_newest_first(queue: Queue, limit: int) -> None:
    ids = await put(queue, 7)
    assert await walk(queue, limit) == ids[::-1]


async def test_job_pages_are_stable_while_jobs_are_added(queue: Queue) -> None:
    ids = await put(queue, 6)
    page = await queue.list(limit=3)
    await put(queue, 5)
    rest = await queue.list(limit=100, after=page[-1].id)
    assert [job.id for job in [*page, *rest]] == ids[::-1]


async def test_filter_by_one_state(queue: Queue) -> None:
    ids = await put(queue, 6)
    await queue.claim("pool", MODEL, 2)
    await queue.cancel(ids[3])
    assert await walk(queue, 1, JobState.RUNNING) == [ids[1], ids[0]]
    assert await walk(queue, 2, JobState.QUEUED) == [ids[5], ids[4], ids[2]]
    assert await walk(queue, 2, JobState.CANCELED) == [ids[3]]
    assert await walk(queue, 2, JobState.FAILED) == []


async def test_a_cursor_may_be_in_another_state(queue: Queue) -> None:
    ids = await put(queue, 4)
    (first,) = await queue.list(limit=1, only=JobFilter(state=JobState.QUEUED))
    await queue.cancel(first.id)
    rest = await queue.list(limit=10, after=first.id, only=JobFilter(state=JobState.QUEUED))
    assert [job.id for job in rest] == ids[2::-1]


async def test_tenants_list_their_own(queue: Queue) -> None:
    for i in range(9):
        await queue.put(a_job(tenant=f"t{i % 2}", metadata={"i": str(i)}))
    await queue.claim("pool", MODEL, 4)
    for tenant, expected in (("t0", [8, 6, 4, 2, 0]), ("t1", [7, 5, 3, 1]), ("t", [])):
        jobs = await queue.list(tenant=tenant, limit=10)
        assert [int(job.metadata["i"]) for job in jobs] == expected
    (foreign,) = await queue.list(tenant="t1", limit=1)
    with pytest.raises(UnknownCursor, match=foreign.id):
        await queue.list(tenant="t0", limit=1, after=foreign.id)


async def test_deleted_tenant_leaves_no_keys(queue: Queue, empty_redis: Redis) -> None:
    jobs = [(await queue.put(a_job(tenant="t")))[0] for _ in range(3)]
    await queue.claim("pool", MODEL, 1)
    for job in jobs:
        await queue.delete(job.id)
    assert [key for key in await empty_redis.keys() if key.endswith(":t")] == []


async def test_an_unknown_cursor_is_refused(queue: Queue) -> None:
    await put(queue, 1)
    with pytest.raises(UnknownCursor, match="job_nope"):
        await queue.list(limit=1, after="job_nope")


async def all_pages(queue: Queue, only: JobFilter, limit: int = 2) -> list[str]:
    """Ids on all pages, following the cursors."""
    ids: list[str] = []
    page = await queue.list(limit=limit, only=only)
    while page.next:
        assert len(page) <= limit
        ids += [job.id for job in page]
        page = await queue.list(limit=limit, only=only, after=page.next)
    return ids + [job.id for job in page]


MIXED: list[dict[str, Any]] = [
    {"model": model, "metadata": metadata}
    for model in (MODEL, "other")
    for metadata in ({}, {"shot": "1"}, {"shot": "2", "é": "ü😀"}, {"take": "1"})
]


@pytest.mark.parametrize(
    ("only", "places"),
    [
        (JobFilter(model=MODEL), [0, 1, 2, 3]),
        (JobFilter(model="nobody's"), []),
        (JobFilter(metadata_key="shot"), [1, 2, 5, 6]),
        (JobFilter(metadata_key="shot", metadata_value="1"), [1, 5]),
        (JobFilter(metadata_key="é", metadata_value="ü😀"), [2, 6]),
        (JobFilter(metadata_key="take", metadata_value="2"), []),
        (JobFilter(model="other", metadata_key="shot"), [5, 6]),
        (JobFilter(model=MODEL, state=JobState.CANCELED), [1]),
        (JobFilter(metadata_key="shot", state=JobState.QUEUED), [2, 5, 6]),
    ],
)
async def test_filters(queue: Queue, only: JobFilter, places: list[int]) -> None:
    ids = [(await queue.put(a_job(**kind)))[0].id for kind in MIXED]
    await queue.cancel(ids[1])
    assert await all_pages(queue, only) == [ids[place] for place in reversed(places)]


async def test_list_filters_by_the_requested_model_name(queue: Queue) -> None:
    """The filter ignores the base model whose workers run the job."""
    job, _ = await queue.put(a_job(request={"model": "lightning"}))
    plain, _ = await queue.put(a_job())
    assert await all_pages(queue, JobFilter(model="lightning")) == [job.id]
    assert await all_pages(queue, JobFilter(model=MODEL)) == [plain.id]


async def test_by_time(queue: Queue) -> None:
    jobs = [(await queue.put(a_job(metadata={"i": str(i)})))[0] for i in range(6)]
    times_us = [round(job.created_at * 1e6) for job in jobs]
    ids = [job.id for job in jobs]
    window = JobFilter(created_from_us=times_us[1], created_before_us=times_us[4])
    assert await all_pages(queue, window) == ids[3:0:-1]
    assert await all_pages(queue, replace(window, metadata_key="i")) == ids[3:0:-1]
    assert await all_pages(queue, JobFilter(created_from_us=times_us[5] + 1)) == []
    assert await all_pages(queue, JobFilter(created_before_us=times_us[0])) == []
    page = await queue.list(limit=9, after=ids[5], only=JobFilter(created_before_us=times_us[2]))
    assert [job.id for job in page] == ids[1::-1], "the earlier bound counts"
    page = await queue.list(limit=9, after=ids[1], only=JobFilter(created_before_us=times_us[5]))
    assert [job.id for job in page] == ids[:1], "the earlier bound counts"


async def test_rare_job_is_found_over_several_bounded_pages(queue: Queue) -> None:
    """Each page examines a bounded number of jobs and may be empty; the last page has no cursor."""
    rare, _ = await queue.put(a_job(metadata={"rare": "1"}))
    await put(queue, LIST_SCAN_LIMIT + 50)
    newest, _ = await queue.put(a_job(metadata={"rare": "2"}))
    only = JobFilter(metadata_key="rare")
    first = await queue.list(limit=10, only=only)
    assert [job.id for job in first] == [newest.id] and first.next
    rest = await queue.list(limit=10, only=only, after=first.next)
    assert [job.id for job in rest] == [rare.id] and rest.next is None
    assert await all_pages(queue, only, limit=1) == [newest.id, rare.id]
