"""Order of jobs: shares by weight, bounded priorities, deadlines, warm buckets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping

import pytest

from models.spec.lora import RequestedLora, always
from service.jobs.model.job import PRIORITIES, Usage
from service.jobs.queue import Claim, Queue, WorkerState
from service.jobs.redis import keys
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL, a_job, a_snapshot
from tests.service.standin import SPEC

MANY = 300
"""Number of tenants with jobs of one bucket: more than one claim examines (`HEAD` of order.lua)."""
FAIR = 0.05
"""Maximum deviation of a share from its weight: the largest cost of a job over the total served."""


async def put(queue: Queue, tenant: str, count: int = 1, **fields: object) -> list[str]:
    jobs = [a_job(tenant=tenant, **fields) for _ in range(count)]
    for job in jobs:
        await queue.put(job)
    return [job.id for job in jobs]


async def serve(queue: Queue, slots: int = 1, **how: object) -> list[Claim]:
    """Claim once; each job takes exactly its predicted time."""
    claims = await queue.claim("pool", MODEL, slots, WorkerState(**how))
    for claim in claims:
        await queue.finish(claim, [], Usage(device_seconds=claim.job.cost))
    return claims


async def served(queue: Queue, device_seconds: float, slots: int = 1) -> Counter[str]:
    """Device-seconds served by tenant."""
    seconds: Counter[str] = Counter()
    while seconds.total() < device_seconds:
        for claim in await serve(queue, slots):
            seconds[claim.job.tenant] += claim.job.cost
    return seconds


def assert_shares(seconds: Mapping[str, float], weights: Mapping[str, float]) -> None:
    total, total_weight = sum(seconds.values()), sum(weights.values())
    for tenant, weight in weights.items():
        assert seconds[tenant] / total == pytest.approx(weight / total_weight, rel=FAIR)


@pytest.mark.parametrize("slots", [1, 4])
async def test_shares_are_by_weight_in_device_seconds(queue: Queue, slots: int) -> None:
    """Shares count device-seconds, not jobs, whose costs differ by a factor of twenty. The first
    tenant does not matter."""
    weights, costs = {"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 0.5, "b": 10.0, "c": 2.0}
    for tenant, weight in weights.items():
        cost = costs[tenant]
        await put(queue, tenant, round(2000 / cost / 4), weight=weight, cost=cost)
    assert_shares(await served(queue, 700, slots), weights)


async def test_late_tenant_waits_for_one_job(queue: Queue) -> None:
    await put(queue, "heavy", 500, cost=2.0)
    await served(queue, 100)
    (light,) = await put(queue, "light", cost=2.0)
    next_two = [claim.job.id for _ in range(2) for claim in await serve(queue)]
    assert light in next_two


async def test_idle_tenant_accumulates_no_share(queue: Queue) -> None:
    await put(queue, "early", cost=1.0)
    await put(queue, "steady", 300, cost=1.0)
    await served(queue, 100)
    await put(queue, "early", 300, cost=1.0)
    assert_shares(await served(queue, 100), {"early": 1, "steady": 1})


async def test_equal_tenants_are_served_in_arrival_order(queue: Queue) -> None:
    """Equal tenants are served in order of arrival, regardless of their names. New tenants cannot
    starve the first."""
    names = ["m", "z", "a", "y", "b"]
    for name in names:
        await put(queue, name)
    order = []
    for late in ("c", "d", "e", "f", "g"):
        order += [claim.job.tenant for claim in await serve(queue)]
        await put(queue, late)
    assert order == names


async def test_unused_cost_is_refunded(queue: Queue) -> None:
    """A tenant whose predictions are ten times too long still gets its share."""
    await put(queue, "over", 400, cost=10.0)
    await put(queue, "right", 400, cost=1.0)
    seconds: Counter[str] = Counter()
    while seconds.total() < 300:
        (claim,) = await queue.claim("pool", MODEL, 1)
        await queue.finish(claim, [], Usage(device_seconds=1.0))
        seconds[claim.job.tenant] += 1
    assert_shares(seconds, {"over": 1, "right": 1})


async def test_unused_cost_is_refunded_without_queued_jobs(queue: Queue) -> None:
    """The refund is complete, even if the tenant is then no longer ahead of the others."""
    await put(queue, "first", cost=4.0)
    await put(queue, "other", 9, cost=1.0)
    (claim,) = await queue.claim("pool", MODEL, 1)
    assert await served(queue, 2) == {"other": 2}
    await queue.finish(claim, [], Usage(device_seconds=0.5))
    await put(queue, "first", 9, cost=1.0)
    assert await served(queue, 4) == {"first": 3, "other": 1}, (
        "one second behind, and first of equals"
    )


async def test_forgotten_cost_is_not_refunded(queue: Queue) -> None:
    """A job for which no other waited was free, so canceling it gives no credit."""
    (clip,) = await put(queue, "sly", cost=1000.0)
    await queue.claim("pool", MODEL, 1)
    for tenant in ("sly", "plain"):
        await put(queue, tenant, 40, cost=1.0)
    await queue.cancel(clip)
    assert_shares(await served(queue, 40), {"sly": 1, "plain": 1})


async def test_released_claims_do_not_reduce_a_tenants_share(queue: Queue, hasty: Queue) -> None:
    await put(queue, "unlucky", 200, cost=1.0)
    await put(queue, "lucky", 200, cost=1.0)
    for _ in range(50):
        await queue.release((await queue.claim("pool", MODEL, 1))[0])
    assert_shares(await served(queue, 100), {"unlucky": 1, "lucky": 1})


async def test_tenants_share_a_batch_in_turn(queue: Queue) -> None:
    """Within one bucket too, tenants take turns in filling a batch, instead of the oldest jobs
    first."""
    await put(queue, "first", 300, cost=1.0)
    await put(queue, "second", 300, cost=1.0)
    assert_shares(await served(queue, 200, slots=4), {"first": 1, "second": 1})


async def test_batch_rotates_over_tenants_of_the_bucket(queue: Queue) -> None:
    await put_each("t", queue, jobs=2, cost=1.0)
    for _ in range(2):
        jobs_by_tenant = Counter(claim.job.tenant for claim in await serve(queue, slots=MANY))
        assert len(jobs_by_tenant) == MANY, "a job of each tenant before a second of any"


async def test_same_bucket_jobs_are_found_after_many_other_tenants(
    connect: Connect,
) -> None:
    queue = await connect(affinity_s=60)
    await put(queue, "keeper", bucket="other")  # otherwise charges are forgotten
    await put_each("late", queue, bucket="rare", cost=9.0)
    assert len(await serve(queue, slots=MANY, warm=["rare"])) == MANY
    await put_each("early", queue, bucket="other", cost=9.0)
    await put_each("late", queue, bucket="rare", cost=9.0)
    claims = [claim for _ in range(MANY // 2) for claim in await serve(queue, 2, warm=["rare"])]
    assert Counter(claim.job.bucket for claim in claims) == {"rare": MANY}
    assert len({claim.job.id for claim in claims}) == MANY


async def put_each(name: str, queue: Queue, jobs: int = 1, **fields: object) -> None:
    """Submit `jobs` jobs for each of `MANY` tenants."""
    await asyncio.gather(*(put(queue, f"{name}-{n}", jobs, **fields) for n in range(MANY)))


async def test_priority_is_bounded_by_waiting_time(connect: Connect) -> None:
    queue = await connect(priority_s=0.05)
    (low,) = await put(queue, "a", priority=PRIORITIES["low"])
    # Longer than a level is worth, by Redis's clock, which a test cannot set.
    await asyncio.sleep(0.06)
    (high,) = await put(queue, "a", priority=PRIORITIES["high"])
    (normal,) = await put(queue, "a")
    order = [claim.job.id for _ in range(3) for claim in await serve(queue)]
    assert order.index(high) < order.index(normal)
    later = [(await put(queue, "a"))[0] for _ in range(2)]
    assert low in order and not set(later) & set(order)


async def test_priority_advances_a_tenant_by_a_fixed_amount(connect: Connect) -> None:
    """The urgent tenant gets ten device-seconds first, and equal shares afterwards."""
    queue = await connect(priority_advance_s=10)
    await put(queue, "plain", 100, cost=1.0)
    await put(queue, "urgent", 100, cost=1.0, priority=PRIORITIES["high"])
    seconds = await served(queue, 30)
    assert seconds["urgent"] - seconds["plain"] == pytest.approx(10, abs=1)
    assert_shares(await served(queue, 60), {"plain": 1, "urgent": 1})


async def test_deadlines_by_latest_start(queue: Queue) -> None:
    now = time.time()
    await put(queue, "a", 3)
    (loose,) = await put(queue, "a", deadline_at=now + 300, run_s=1.0)
    (long,) = await put(queue, "a", deadline_at=now + 400, run_s=250.0)
    (tight,) = await put(queue, "a", deadline_at=now + 100, run_s=1.0)
    order = [claim.job.id for _ in range(6) for claim in await serve(queue)]
    assert order[:3] == [tight, long, loose]


async def test_unreachable_deadline_expires(queue: Queue) -> None:
    (late,) = await put(queue, "a", deadline_at=time.time() + 10, run_s=20.0)
    (fine,) = await put(queue, "a", deadline_at=time.time() + 30, run_s=20.0)
    assert [claim.job.id for claim in await serve(queue)] == [fine]
    assert (await queue.get(late)).state == "expired"


async def test_deadlines_do_not_buy_more_than_a_credit(connect: Connect) -> None:
    queue = await connect(deadline_credit_s=20)
    soon = {"deadline_at": time.time() + 1000, "run_s": 1.0}
    await put(queue, "hurried", 300, cost=1.0, **soon)
    await put(queue, "patient", 300, cost=1.0)
    seconds = await served(queue, 40)
    assert seconds["hurried"] - seconds["patient"] == pytest.approx(20, abs=2)
    assert_shares(await served(queue, 100), {"hurried": 1, "patient": 1})


async def test_deadline_credit_scales_with_the_number_of_pools(connect: Connect) -> None:
    queue = await connect(deadline_credit_s=10)
    for name in ("one", "two", "three"):
        await queue.register(name, SPEC.model_copy(update={"name": MODEL}), ready=True)
    soon = {"deadline_at": time.time() + 1000, "run_s": 1.0}
    await put(queue, "hurried", 100, cost=1.0, **soon)
    await put(queue, "patient", 100, cost=1.0)
    seconds = await served(queue, 50)
    assert seconds["hurried"] - seconds["patient"] == pytest.approx(30, abs=2)


async def test_credited_deadline_survives_used_credit(connect: Connect) -> None:
    """A job accepted for its deadline is not late because its tenant has used its credit since."""
    queue = await connect(deadline_credit_s=10)
    await put(queue, "patient", 5, cost=1.0)
    await put(queue, "hurried", 3, cost=6.0, deadline_at=time.time() + 50, run_s=1.0)
    (credited,) = await put(
        queue, "hurried", cost=6.0, deadline_at=time.time() + 60, run_s=1.0, credited=True
    )
    order = [claim.job for _ in range(4) for claim in await serve(queue)]
    assert [job.tenant for job in order] == ["hurried", "hurried", "hurried", "patient"]
    assert order[2].id == credited, "before an earlier deadline without credit"


async def test_guaranteed_deadline_waits_only_for_earlier_ones(
    connect: Connect,
) -> None:
    """The tenant is ahead by more than its credit: by its turn alone its job would be last."""
    queue = await connect(deadline_credit_s=10)
    soon = {"deadline_at": time.time() + 60, "run_s": 1.0}
    (before,) = await put(queue, "patient", cost=1.0)
    (paid,) = await put(queue, "hurried", cost=30.0, **soon)
    assert [claim.job.id for claim in await serve(queue)] == [paid]
    (guaranteed,) = await put(queue, "hurried", cost=1.0, guaranteed=True, **soon)
    (after,) = await put(queue, "later", cost=1.0)
    order = [claim.job.id for _ in range(3) for claim in await serve(queue)]
    assert order == [before, guaranteed, after]


async def test_unclaimable_job_does_not_block_guaranteed_deadlines(
    connect: Connect,
) -> None:
    """The first job in turn waits to be compiled for; later jobs do not overtake the guaranteed
    one."""
    queue = await connect(deadline_credit_s=10)
    soon = {"deadline_at": time.time() + 60, "run_s": 1.0}
    (cold,) = await put(queue, "patient", cost=1.0, bucket="cold")
    (paid,) = await put(queue, "hurried", cost=30.0, **soon)
    assert [claim.job.id for claim in await serve(queue)] == [paid]
    (guaranteed,) = await put(queue, "hurried", cost=1.0, guaranteed=True, bucket="warm", **soon)
    later = await put(queue, "later", 2, cost=1.0, bucket="warm")
    how = {"warm": ["warm"], "may_compile": lambda: False}
    order = [claim.job.id for _ in range(3) for claim in await serve(queue, **how)]
    assert order == [guaranteed, *later]
    assert [claim.job.id for claim in await serve(queue)] == [cold]


async def test_slow_pool_skips_jobs_for_a_faster_one(queue: Queue) -> None:
    (tight,) = await put(queue, "a", deadline_at=time.time() + 30, run_s=20.0)
    (easy,) = await put(queue, "a")
    assert [claim.job.id for claim in await serve(queue, slowness=2.0)] == [easy]
    assert await serve(queue, slowness=2.0) == []
    assert [claim.job.id for claim in await serve(queue)] == [tight]


async def test_slowness_is_per_bucket(queue: Queue) -> None:
    fields = {"deadline_at": time.time() + 30, "run_s": 20.0}
    (clip,) = await put(queue, "a", bucket="clip", **fields)
    (picture,) = await put(queue, "a", bucket="picture", **fields)
    good_at_pictures = {"slowness": 2.0, "slowness_in": {"picture": 1.0}}
    assert [claim.job.id for claim in await serve(queue, **good_at_pictures)] == [picture]
    assert await serve(queue, **good_at_pictures) == []
    bad_at_clips = {"slowness_in": {"clip": 2.0}}
    assert await serve(queue, **bad_at_clips) == []
    assert [claim.job.id for claim in await serve(queue)] == [clip]


async def test_slow_worker_finds_jobs_after_many_it_skips(queue: Queue) -> None:
    """Jobs that the slow worker can run do not wait for those that it cannot, of any tenant."""
    for tenant in "abc":
        await put(queue, tenant, 40, deadline_at=time.time() + 60, run_s=40.0)
    (easy,) = await put(queue, "a", priority=PRIORITIES["low"])
    (loose,) = await put(queue, "d", deadline_at=time.time() + 1000, run_s=40.0)
    claimed = [claim.job.id for _ in range(2) for claim in await serve(queue, slowness=2.0)]
    assert claimed == [loose, easy]
    assert await serve(queue, slowness=2.0) == []


async def test_slow_worker_claims_jobs_it_can_finish_in_time(queue: Queue) -> None:
    """Five of ten seconds' work remain: at half the speed they fit into fifteen."""
    await put(queue, "a", deadline_at=time.time() + 15, run_s=10.0, steps=4)
    (claim,) = await queue.claim("pool", MODEL, 1)
    await queue.snapshot(claim, [a_snapshot(claim, step=2)])
    await queue.release(claim)
    (again,) = await serve(queue, slowness=2.0)
    assert again.job.id == claim.job.id


async def test_tenant_without_credit_does_not_block_other_deadlines(connect: Connect) -> None:
    queue = await connect(deadline_credit_s=10)
    await put(queue, "plain", 3, cost=1.0)
    await put(queue, "modest", cost=5.0, deadline_at=time.time() + 50, run_s=1.0)
    assert [claim.job.tenant for claim in await serve(queue)] == ["modest"]
    await put(queue, "flood", 100, cost=6.0, deadline_at=time.time() + 100, run_s=1.0)
    assert [claim.job.tenant for _ in range(2) for claim in await serve(queue)] == ["flood"] * 2
    await put(queue, "modest", cost=1.0, deadline_at=time.time() + 500, run_s=1.0)
    order = [claim.job.tenant for _ in range(2) for claim in await serve(queue)]
    assert order == ["modest", "plain"], "within its credit, which the flood has used up"


async def has_waited(queue: Queue, job_id: str) -> None:
    """Make a job look as if it had waited longer than any affinity lasts."""
    await queue.redis.hset(keys.job(job_id), "queued_at", 0)


async def test_warm_buckets_first_but_not_for_long(connect: Connect) -> None:
    queue = await connect(affinity_s=3600)
    (cold,) = await put(queue, "a", bucket="cold")
    warm = await put(queue, "a", 2, bucket="warm")
    assert [claim.job.id for claim in await serve(queue, warm=["warm"])] == [warm[0]]
    await has_waited(queue, cold)
    (fresh,) = await put(queue, "a", bucket="warm")
    order = [claim.job.id for _ in range(3) for claim in await serve(queue, warm=["warm"])]
    assert order == [cold, warm[1], fresh]


async def test_no_warm_bucket_no_waiting(queue: Queue) -> None:
    (cold,) = await put(queue, "a", bucket="cold")
    assert [claim.job.id for claim in await serve(queue, warm=["other"])] == [cold]


def adapted(*digests: str) -> dict[str, object]:
    """Fields of a job with these adapters."""
    return {
        "loras": [
            RequestedLora(
                name=digest, digest=digest, pages=1, networks=("unet",), scales=always(1.0)
            )
            for digest in digests
        ]
    }


async def test_jobs_with_loaded_adapters_go_first_for_a_limited_time(connect: Connect) -> None:
    queue = await connect(affinity_s=3600)
    (cold,) = await put(queue, "a", **adapted("ink", "rare"))
    (warm,) = await put(queue, "a", **adapted("ink"))
    (plain,) = await put(queue, "a")
    offer = {"adapters": ["ink"]}
    assert [claim.job.id for claim in await serve(queue, **offer)] == [warm]
    assert [claim.job.id for claim in await serve(queue, **offer)] == [plain]
    (warm,) = await put(queue, "a", **adapted("ink"))
    await has_waited(queue, cold)
    order = [claim.job.id for _ in range(2) for claim in await serve(queue, **offer)]
    assert order == [cold, warm]


async def test_loaded_adapters_do_not_reorder_tenants(connect: Connect) -> None:
    """Adapters do not change the order of tenants or buckets, only that of a tenant's jobs in one
    bucket."""
    queue = await connect(affinity_s=60)
    (first,) = await put(queue, "a", **adapted("rare"))
    await put(queue, "b", **adapted("ink"))
    await put(queue, "a", bucket="other", **adapted("ink"))
    assert [claim.job.id for claim in await serve(queue, adapters=["ink"])] == [first]


async def test_job_with_an_unloaded_adapter_does_not_wait(queue: Queue) -> None:
    (cold,) = await put(queue, "a", **adapted("rare"))
    assert [claim.job.id for claim in await serve(queue)] == [cold]
