"""Operators' calls: pauses, jobs of all tenants, and jobs that are requeued."""

from __future__ import annotations

import asyncio

import pytest

from service.jobs.model.job import Job, JobState
from service.jobs.operations import AllJobsFilter, Pause, TenantBacklog
from service.jobs.queue import Queue, UnknownCursor
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, an_output

PAUSE = Pause(by="op", at=1.0, reason="a driver")
DRAIN = PAUSE.model_copy(update={"drains": True})


async def put(queue: Queue, **fields: object) -> Job:
    return (await queue.put(a_job(**fields)))[0]


@pytest.mark.parametrize(
    ("kind", "name"), [("model", MODEL), ("pool", "flux-a"), ("pool", "flux-a-0f3e")]
)
async def test_paused_pool_or_model_claims_nothing(queue: Queue, kind: str, name: str) -> None:
    await put(queue)
    await queue.pause(kind, name, PAUSE)
    assert not await queue.claim("flux-a-0f3e", MODEL, 1)
    assert await queue.pauses() == {(kind, name): PAUSE}
    assert await queue.pause_of("flux-a-0f3e", MODEL) == PAUSE
    assert await queue.resume(kind, name)
    assert not await queue.resume(kind, name)
    assert await queue.pause_of("flux-a-0f3e", MODEL) is None
    assert len(await queue.claim("flux-a-0f3e", MODEL, 1)) == 1


@pytest.mark.parametrize("name", ["flux", "flux-a-0f3", "flux-a-0f3e-1", "other"])
async def test_pause_does_not_affect_others(queue: Queue, name: str) -> None:
    await put(queue)
    await queue.pause("pool", name, PAUSE)
    await queue.pause("model", "other", PAUSE)
    assert await queue.pause_of("flux-a-0f3e", MODEL) is None
    assert len(await queue.claim("flux-a-0f3e", MODEL, 1)) == 1


async def test_drain_takes_precedence_over_pause(queue: Queue) -> None:
    await queue.pause("model", MODEL, PAUSE)
    await queue.pause("pool", "flux", DRAIN)
    assert await queue.pause_of("flux-0f3e", MODEL) == DRAIN


async def test_waiting_claim_continues_after_the_pause(queue: Queue) -> None:
    await queue.register("pool-1", _spec(), ready=True)
    await queue.pause("pool", "pool", PAUSE)
    job = await put(queue)
    claim = asyncio.create_task(queue.claim("pool-1", MODEL, 1, wait_s=60))
    done, _ = await asyncio.wait([claim], timeout=0.2)
    assert not done
    await queue.resume("pool", "pool")
    assert [claimed.job.id for claimed in await asyncio.wait_for(claim, 30)] == [job.id]


def _spec() -> object:
    from tests.service.standin import SPEC

    return SPEC.model_copy(update={"name": MODEL})


async def test_a_job_is_taken_back(queue: Queue) -> None:
    job = await put(queue)
    assert await queue.take_back(job.id) is JobState.QUEUED
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await queue.take_back(job.id) is JobState.RUNNING
    current = await queue.get(job.id)
    assert current is not None and (current.state, current.attempts) == (JobState.QUEUED, 0)
    assert not await queue.progress(claim, 1, 28), "the worker's claim is over"
    assert not await queue.finish(claim, [], USAGE)
    (other,) = await queue.claim("other", MODEL, 1)
    assert other.job.id == job.id and other.fence == claim.fence + 1
    assert await queue.finish(other, [an_output(job)], USAGE)
    assert await queue.take_back(job.id) is JobState.SUCCEEDED, "an ended job stays ended"
    current = await queue.get(job.id)
    assert current is not None and current.state is JobState.SUCCEEDED
    assert await queue.take_back("job_none") is None


async def test_jobs_of_all_tenants(queue: Queue) -> None:
    jobs = [await put(queue, tenant=f"t{number % 2}") for number in range(7)]
    ids = [job.id for job in jobs][::-1]
    await queue.claim("pool", MODEL, 1)
    listed: list[str] = []
    after = None
    while True:
        page = await queue.any_jobs(AllJobsFilter(), 3, after)
        listed += [job.id for job in page]
        if (after := page.next) is None:
            break
    assert listed == ids
    of_one = await queue.any_jobs(AllJobsFilter(tenant="t1"), 10)
    assert {job.tenant for job in of_one} == {"t1"} and len(of_one) == 3
    (running,) = await queue.any_jobs(AllJobsFilter(state=JobState.RUNNING), 10)
    assert [job.id for job in await queue.running()] == [running.id]
    assert not await queue.any_jobs(AllJobsFilter(model="other"), 10)
    with pytest.raises(UnknownCursor):
        await queue.any_jobs(AllJobsFilter(), 3, "job_none")


async def test_page_has_a_scan_limit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the oldest job matches."""
    monkeypatch.setattr("service.jobs.operations.SCAN_LIMIT", 3)
    oldest = await put(queue, tenant="rare")
    for _ in range(7):
        await put(queue)
    ids, after, pages = [], None, 0
    while True:
        page = await queue.any_jobs(AllJobsFilter(tenant="rare"), 5, after)
        ids += [job.id for job in page]
        pages += 1
        if (after := page.next) is None:
            break
    assert ids == [oldest.id] and pages == 3


async def test_failures_and_waiting_tenants(queue: Queue) -> None:
    first, second = [await put(queue, cost=2.0) for _ in range(2)]
    for claim in await queue.claim("pool", MODEL, 2):
        await queue.fail(claim, FAILURE, retry=False)
    await queue.cancel((await put(queue)).id)
    assert {job.id for job in await queue.failures(10)} == {first.id, second.id}
    assert len(await queue.failures(1)) == 1
    await put(queue, tenant="a", cost=1.5)
    await put(queue, tenant="b", cost=1.0)
    await put(queue, tenant="b", cost=1.0)
    assert await queue.backlog([MODEL, "none"]) == [
        TenantBacklog(MODEL, "b", 2, 2.0),
        TenantBacklog(MODEL, "a", 1, 1.5),
    ]
