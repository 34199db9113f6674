"""Quotas of a tenant, enforced by scripts: queued jobs, device-seconds per hour, stored bytes."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from redis.asyncio import Redis

from service.jobs.model.job import Job, JobState, Usage
from service.jobs.queue import Claim, Queue, QuotaExceeded, QuotaUsage
from service.jobs.redis.keys import PREFIX
from service.settings.tenants import TenantSettings
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import FAILURE, MODEL, USAGE, a_job, a_snapshot, an_output

TENANT = "acme"
USED = f"{PREFIX}used:{TENANT}"
PROMISED = f"{PREFIX}promised:{TENANT}"
TEN_SECONDS = TenantSettings(device_seconds_per_hour=10)
WIDE = TenantSettings(device_seconds_per_hour=1e9)
HOUR_S, MINUTE_S = 3600, 60
ROUNDED_S = 300 * 0.5e-6
"""Rounding of at most three hundred amounts to millionths."""


async def put(queue: Queue, limits: TenantSettings, **fields: object) -> Job:
    return (await queue.put(a_job(**{"tenant": TENANT} | fields), limits=limits))[0]


async def refused(queue: Queue, limits: TenantSettings, **fields: object) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as error:
        await put(queue, limits, **fields)
    return error.value


async def used(queue: Queue) -> float:
    return (await queue.quota_usage(TENANT, TEN_SECONDS)).device_seconds


async def finish(queue: Queue, claim: Claim, device_seconds: float) -> None:
    assert await queue.finish(claim, [], Usage(device_seconds=device_seconds))


async def test_waiting_jobs_are_counted_over_all_models(queue: Queue) -> None:
    two = TenantSettings(max_queued=2)
    await put(queue, two)
    await put(queue, two, model="other")
    assert (await refused(queue, two, model="third")).quota == "queued"
    await put(queue, two, tenant="zoo")
    assert (await queue.quota_usage(TENANT, two)).queued == 2
    await queue.claim("pool", MODEL, 1)
    await put(queue, two)
    assert (await refused(queue, two)).quota == "queued"


async def test_quota_holds_for_concurrent_puts(queue: Queue) -> None:
    five = TenantSettings(max_queued=5)
    puts = (put(queue, five) for _ in range(20))
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 15
    assert (await queue.quota_usage(TENANT, five)).queued == 5


async def test_quota_error_has_the_current_usage(queue: Queue) -> None:
    limits = TenantSettings(max_queued=2, device_seconds_per_hour=10)
    oldest = await put(queue, limits, cost=4)
    await put(queue, limits, cost=4)
    error = await refused(queue, limits)
    assert (error.quota, error.oldest) == ("queued", oldest.id)
    assert (
        error.usage
        == await queue.quota_usage(TENANT, limits)
        == QuotaUsage(2, 8.0, HOUR_S, 0, 24 * HOUR_S)
    )


async def test_hourly_quota_counts_promised_and_used_seconds(queue: Queue) -> None:
    first = await put(queue, TEN_SECONDS, cost=6)
    second = await put(queue, TEN_SECONDS, cost=6)  # accepted while any quota is left
    error = await refused(queue, TEN_SECONDS, cost=0.1)
    # Both jobs must end, and then leave the hour.
    assert (error.quota, error.usage.next_s) == ("device-seconds", HOUR_S + MINUTE_S)
    await put(queue, TEN_SECONDS, tenant="zoo")
    await queue.cancel(second.id)
    assert await used(queue) == 6
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert claim.job.id == first.id and await used(queue) == 6
    await finish(queue, claim, 1.5)
    assert await used(queue) == 1.5
    await put(queue, TEN_SECONDS, cost=9)
    assert await used(queue) == 10.5
    await refused(queue, TEN_SECONDS)


async def test_quota_error_has_the_retry_time(queue: Queue, empty_redis: Redis) -> None:
    for _ in range(3):
        await put(queue, TEN_SECONDS, cost=1)
    for claim in await queue.claim("pool", MODEL, 3):
        await finish(queue, claim, 4)
    error = await refused(queue, TEN_SECONDS)
    assert HOUR_S - 1 < error.usage.next_s <= HOUR_S + MINUTE_S
    # Jobs ended 50, 40, 30 and 62 minutes ago; one more must leave the hour.
    minute = int(time.time()) // MINUTE_S
    ended = {minute - ago: 4_000_000 for ago in (50, 40, 30, 62)}
    await empty_redis.delete(USED)
    await empty_redis.hset(USED, mapping=ended)
    standing = await queue.quota_usage(TENANT, TEN_SECONDS)
    until_s = (minute - 50 + 1) * MINUTE_S + HOUR_S - time.time()
    assert standing.device_seconds == 12
    assert standing.next_s == pytest.approx(until_s, abs=2)  # two readings of a clock
    assert (await refused(queue, TEN_SECONDS)).usage.next_s == pytest.approx(until_s, abs=2)
    assert len(await empty_redis.hkeys(USED)) == 3, "usage older than an hour is deleted"
    small = TenantSettings(device_seconds_per_hour=4)  # now two or three more must leave
    until_s += 20 * MINUTE_S
    assert (await refused(queue, small)).usage.next_s == pytest.approx(until_s, abs=2)
    await empty_redis.hdel(USED, minute - 50)
    await put(queue, TEN_SECONDS)


async def test_stopped_job_counts_its_progress(queue: Queue) -> None:
    job = await put(queue, TEN_SECONDS, cost=8, steps=28)
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.progress(claim, 7, 28)
    await queue.cancel(job.id)
    assert await used(queue) == 2


async def test_snapshot_of_a_stopped_job_counts_as_used(queue: Queue) -> None:
    job = await put(queue, TEN_SECONDS, cost=8, steps=28)
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.snapshot(claim, [a_snapshot(claim, step=7)])
    await queue.progress(claim, 21, 28)
    await queue.release(claim)
    await queue.cancel(job.id)
    assert await used(queue) == 2


async def test_repeated_calls_count_once(queue: Queue) -> None:
    job = a_job(tenant=TENANT, cost=2)
    for _ in range(2):
        await queue.put(job, limits=TEN_SECONDS)
    assert await used(queue) == 2
    (claim,) = await queue.claim("pool", MODEL, 1)
    for _ in range(2):
        await finish(queue, claim, 3)
    assert await used(queue) == 3
    await queue.delete(job.id)
    assert await used(queue) == 3


async def test_a_known_idempotency_key_needs_no_quota(queue: Queue) -> None:
    limits = TenantSettings(max_queued=1, device_seconds_per_hour=1)
    first, _ = await queue.put(a_job(tenant=TENANT), idempotency_key="k", digest="d", limits=limits)
    await refused(queue, limits)
    again = await queue.put(a_job(tenant=TENANT), idempotency_key="k", digest="d", limits=limits)
    assert again == (first, False)


class History:
    """Random calls for the jobs of one tenant; `took_s` is the sum of their reported
    device-seconds."""

    def __init__(self, queue: Queue, hasty: Queue) -> None:
        self.queue = queue
        self.hasty = hasty
        self.rng = random.Random(5)
        self.claims: list[Claim] = []
        self.took_s = 0.0

    async def put(self) -> None:
        await put(self.queue, WIDE, cost=self.rng.uniform(0.001, 9))

    async def claim(self) -> None:
        """Claim jobs; some of the leases lapse at once."""
        queue = self.rng.choice([self.queue, self.hasty])
        self.claims += await queue.claim("pool", MODEL, 2)

    async def end(self) -> None:
        """End a claim, which may have lapsed or been superseded."""
        if not self.claims:
            return
        claim = self.claims.pop(self.rng.randrange(len(self.claims)))
        match self.rng.choice(["finish", "fail", "retry", "release"]):
            case "finish":
                seconds = self.rng.uniform(0, 9)
                if await self.queue.finish(claim, [], Usage(device_seconds=seconds)):
                    self.took_s += seconds
            case "release":
                await self.queue.release(claim)
            case how:
                await self.queue.fail(claim, FAILURE, retry=how == "retry")

    async def stop(self) -> None:
        jobs = await self.jobs()
        if jobs:
            act = self.rng.choice([self.queue.cancel, self.queue.delete])
            await act(self.rng.choice(jobs).id)

    async def reap(self) -> None:
        await self.queue.reap()

    async def jobs(self) -> list[Job]:
        return await self.queue.list(tenant=TENANT, limit=1000)

    async def unended_s(self) -> float:
        return sum(job.cost for job in await self.jobs() if not job.state.ended)


async def test_totals_are_consistent_after_any_history(
    queue: Queue, connect: Connect, empty_redis: Redis
) -> None:
    """An unended job counts its prediction, an ended one its usage; all promises are gone in the
    end."""
    history = History(queue, await connect(lease_s=1e-6))
    acts = [history.put, history.put, history.claim, history.end, history.stop, history.reap]
    for _ in range(300):
        await history.rng.choice(acts)()
        expected = history.took_s + await history.unended_s()
        assert await used(queue) == pytest.approx(expected, abs=ROUNDED_S)
    ended = {job.state for job in await history.jobs()}
    assert ended >= set(JobState) - {JobState.EXPIRED, JobState.PAUSED}, (
        "an end state did not occur"
    )
    for job in await history.jobs():
        await queue.cancel(job.id)
    assert not await empty_redis.exists(PROMISED)
    assert await used(queue) == pytest.approx(history.took_s, abs=ROUNDED_S)
    assert 0 < await empty_redis.ttl(USED) <= HOUR_S + MINUTE_S


async def test_without_quotas_no_usage_is_stored(queue: Queue, empty_redis: Redis) -> None:
    job = await put(queue, TenantSettings(weight=2))
    (claim,) = await queue.claim("pool", MODEL, 1)
    await finish(queue, claim, 1)
    assert not await empty_redis.exists(USED, PROMISED)
    assert not await empty_redis.hexists(f"{PREFIX}job:{job.id}", "promised")


FEW_BYTES = TenantSettings(stored_bytes=3000)
OUTPUT_BYTES = an_output(a_job()).bytes


async def stored(queue: Queue) -> int:
    return (await queue.quota_usage(TENANT, FEW_BYTES)).stored_bytes


async def keep(queue: Queue, input_bytes: int, limits: TenantSettings = FEW_BYTES) -> Job:
    job = a_job(tenant=TENANT)
    return (await queue.put(job, limits=limits, input_bytes=input_bytes))[0]


async def test_bytes_count_from_acceptance_until_the_job_leaves(
    queue: Queue, connect: Connect, empty_redis: Redis
) -> None:
    job = await keep(queue, 1000)
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await stored(queue) == 1000
    for _ in range(2):  # a repeat after a lost response
        assert await queue.finish(claim, [an_output(job)], USAGE)
    assert await stored(queue) == 1000 + OUTPUT_BYTES
    with pytest.raises(QuotaExceeded) as error:
        await keep(queue, 1000)
    assert error.value.quota == "stored-bytes"
    assert 24 * HOUR_S - 60 < error.value.usage.leaves_s <= 24 * HOUR_S
    other = await keep(queue, 500)
    await queue.delete(job.id)
    assert await stored(queue) == 500
    await queue.cancel(other.id)
    assert await stored(queue) == 500
    await (await connect(retention_s=1e-6)).reap()
    assert await stored(queue) == 0 and not await empty_redis.exists(f"{PREFIX}stored:{TENANT}")


async def test_bytes_are_counted_without_a_quota(queue: Queue) -> None:
    await keep(queue, 5000, TenantSettings())
    assert await stored(queue) == 5000
    with pytest.raises(QuotaExceeded):
        await keep(queue, 0)


async def test_bytes_of_puts_at_once_hold_the_bound(queue: Queue) -> None:
    answers = await asyncio.gather(*(keep(queue, 700) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 16
    assert await stored(queue) == 4 * 700


async def test_finished_images_of_a_failed_job_are_deleted(queue: Queue) -> None:
    """Otherwise no quota would count them, and no client could fetch them."""
    job = await keep(queue, 0)
    (claim,) = await queue.claim("pool", MODEL, 1)
    output = an_output(job)
    made = a_snapshot(claim).model_copy(update={"key": None, "outputs": (output,)})
    assert await queue.snapshot(claim, [made])
    await queue.fail(claim, FAILURE)
    assert output.key in await queue.reap()
