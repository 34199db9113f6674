"""Device-seconds of jobs over all their claims: in the client's usage and in the tenant's quota."""

from __future__ import annotations

import pytest

from service.jobs.model.job import Job, JobState, Usage
from service.jobs.queue import Claim, ClaimUsage, Queue
from service.settings.tenants import TenantSettings
from tests.service.jobs.examples import FAILURE, MODEL, a_job

LIMITS = TenantSettings(device_seconds_per_hour=1000)
OWN = Usage(steps=28, device_seconds=4, compile_seconds=1)
"""Usage of a successful claim."""


async def claimed(queue: Queue, **fields: object) -> Claim:
    await queue.put(a_job(cost=16, **fields), limits=LIMITS)
    return await again(queue)


async def again(queue: Queue) -> Claim:
    (claim,) = await queue.claim("pool", MODEL, 1)
    return claim


async def device_seconds(queue: Queue, claim: Claim) -> tuple[float, float, float]:
    """Device-seconds in the job's usage, those for compiling among them, and those in the tenant's
    quota."""
    job = await stored_job(queue, claim)
    hour = (await queue.quota_usage(job.tenant, LIMITS)).device_seconds
    return job.usage.device_seconds, job.usage.compile_seconds, hour


async def stored_job(queue: Queue, claim: Claim) -> Job:
    job = await queue.get(claim.job.id)
    assert job is not None
    return job


async def test_usage_of_crashed_attempts_counts_once(queue: Queue, hasty: Queue) -> None:
    first = await claimed(hasty)
    for device_s in (1, 3, 2):  # reports may arrive out of order
        assert await queue.progress(first, 5, 28, spent=ClaimUsage(device_s, 0.5))
    await hasty.reap()
    assert await device_seconds(queue, first) == (3, 0.5, 16), "the prediction is promised"
    second = await again(queue)
    assert await queue.finish(second, [], OWN)
    assert await device_seconds(queue, first) == (7, 1.5, 7)
    assert (await stored_job(queue, first)).usage.steps == OWN.steps


@pytest.mark.parametrize("how", ["release", "retry"])
async def test_usage_of_a_released_attempt(queue: Queue, how: str) -> None:
    first = await claimed(queue)
    if how == "release":
        assert await queue.release(first, spent=ClaimUsage(3, 0.5))
    else:
        assert await queue.fail(first, FAILURE, retry=True, spent=ClaimUsage(3, 0.5))
    assert await device_seconds(queue, first) == (3, 0.5, 16)
    await queue.finish(await again(queue), [], OWN)
    assert await device_seconds(queue, first) == (7, 1.5, 7)


@pytest.mark.parametrize("how", ["fail", "cancel", "expire", "lose"])
async def test_failed_job_is_charged(queue: Queue, hasty: Queue, how: str) -> None:
    holder = hasty if how == "lose" else queue
    claim = await claimed(holder)
    assert await holder.renew([claim], [ClaimUsage(3, 2)]) == []
    if how == "fail":
        await queue.fail(claim, FAILURE, spent=ClaimUsage(3, 2))
    elif how == "cancel":
        await queue.cancel(claim.job.id)
    elif how == "expire":
        await queue.redis.hset(f"{{atelier}}:job:{claim.job.id}", "deadline_at", 1)
        assert await queue.renew([claim]) == [claim]
    else:
        await hasty.reap()
        await again(hasty)
        await hasty.reap()
    assert (await stored_job(queue, claim)).state.ended
    assert await device_seconds(queue, claim) == (3, 2, 3)


async def test_late_compilation_is_charged(queue: Queue) -> None:
    claim = await claimed(queue)
    await queue.renew([claim], [ClaimUsage(1, 1)])
    await queue.cancel(claim.job.id)
    assert await device_seconds(queue, claim) == (1, 1, 1)
    for _ in range(2):
        assert await queue.spent(claim, ClaimUsage(9, 9))
        assert await device_seconds(queue, claim) == (9, 9, 9)


async def test_deleted_job_keeps_the_tenants_charges(queue: Queue) -> None:
    claim = await claimed(queue)
    await queue.renew([claim], [ClaimUsage(1, 1)])
    await queue.delete(claim.job.id)
    for _ in range(2):
        assert await queue.spent(claim, ClaimUsage(9, 9))
        assert (await queue.quota_usage(claim.job.tenant, LIMITS)).device_seconds == 9
    unknown = Claim(a_job(), 1)
    assert not await queue.spent(unknown, ClaimUsage(9, 9))


async def test_device_seconds_of_an_ended_claim_are_charged_to_its_job(queue: Queue) -> None:
    """A worker that released the job goes on compiling while another runs it."""
    first = await claimed(queue)
    await queue.release(first, spent=ClaimUsage(1, 1))
    second = await again(queue)
    assert await queue.spent(first, ClaimUsage(3, 3))
    await queue.finish(second, [], OWN)
    assert await device_seconds(queue, first) == (7, 4, 7)
    assert await queue.spent(first, ClaimUsage(5, 5))
    assert await device_seconds(queue, first) == (9, 6, 9)


@pytest.mark.parametrize("late", [False, True])
async def test_tenant_of_a_canceled_compilation_goes_last(queue: Queue, late: bool) -> None:
    for _ in range(3):  # tags are kept only while jobs are queued
        await queue.put(a_job(tenant="idle", cost=1000, priority=0))
    claim = await claimed(queue, tenant="a", priority=2)
    await queue.renew([claim], [ClaimUsage(0 if late else 50, 0)])
    await queue.cancel(claim.job.id)
    if late:
        await queue.spent(claim, ClaimUsage(50, 50))
    assert (await stored_job(queue, claim)).state is JobState.CANCELED
    for tenant in ("a", "b", "b"):
        await queue.put(a_job(tenant=tenant, cost=16, priority=2))
    order = [(await again(queue)).job.tenant for _ in range(3)]
    assert order == ["b", "b", "a"]
