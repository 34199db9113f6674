"""Claims: order, batches, waiting, and races between workers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from service.jobs.model.job import PRIORITIES, JobState, SecondPass
from service.jobs.model.job_filter import JobFilter
from service.jobs.queue import Claim, Queue, WorkerState
from tests.service.eventually import eventually
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL, USAGE, a_job
from tests.service.jobs.history import a_spec


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


async def put(queue: Queue, **fields: object) -> str:
    return (await queue.put(a_job(**fields)))[0].id


async def test_a_claim_is_a_running_job_with_a_fence(queue: Queue) -> None:
    job_id = await put(queue)
    (claim,) = await queue.claim("pool-0", MODEL, 4)
    assert claim.job == await queue.get(job_id)
    assert (claim.job.state, claim.job.attempts, claim.fence) == (JobState.RUNNING, 1, 1)
    assert claim.job.started_at is not None
    assert claim.job.started_at >= claim.job.created_at
    assert await queue.claim("pool-0", MODEL, 4) == []


async def test_priority_then_age(queue: Queue) -> None:
    names = ["normal", "low", "high", "normal", "high", "low"]
    put_ids = [await put(queue, priority=PRIORITIES[name]) for name in names]
    order = [ids(await queue.claim("pool", MODEL, 1))[0] for _ in names]
    assert order == [put_ids[i] for i in (2, 4, 0, 3, 1, 5)]


async def test_the_head_takes_its_bucket_along(queue: Queue) -> None:
    a = [await put(queue, bucket="a") for _ in range(2)]
    b = [await put(queue, bucket="b") for _ in range(2)]
    a += [await put(queue, bucket="a") for _ in range(2)]
    late = await put(queue, bucket="a", priority=PRIORITIES["high"])
    assert ids(await queue.claim("pool", MODEL, 4)) == [late, *a[:3]]
    assert ids(await queue.claim("pool", MODEL, 4)) == b  # older than the last a
    assert ids(await queue.claim("pool", MODEL, 4)) == a[3:]


async def test_slots_count_images(queue: Queue) -> None:
    double, single, triple, last = [await put(queue, images=n) for n in (2, 1, 3, 1)]
    assert ids(await queue.claim("pool", MODEL, 4)) == [double, single]  # three would not fit
    assert ids(await queue.claim("pool", MODEL, 4)) == [triple, last]


async def test_oversized_head_is_claimed_separately(queue: Queue) -> None:
    big, small = [await put(queue, images=n) for n in (9, 1)]
    assert ids(await queue.claim("pool", MODEL, 4)) == [big]
    assert ids(await queue.claim("pool", MODEL, 4)) == [small]


async def test_models_and_buckets_do_not_mix(queue: Queue) -> None:
    first = await put(queue, model="a:b", bucket="c")
    await put(queue, model="a", bucket="b:c")
    assert ids(await queue.claim("pool", "a:b", 4)) == [first]
    assert await queue.claim("pool", "other", 4) == []


async def test_no_slots_no_claims(queue: Queue) -> None:
    await put(queue)
    assert await queue.claim("pool", MODEL, 0, wait_s=60) == []


async def test_claim_leaves_an_avoided_job_to_other_workers(connect: Connect) -> None:
    patient, hasty = await connect(affinity_s=3600), await connect(affinity_s=0)
    left = await put(patient, avoid="one")
    (alone,) = await patient.claim("one", MODEL, 1)
    assert alone.job.id == left, "no other worker is there"
    assert await patient.release(alone)
    for pool in ("one", "two"):
        await patient.register(pool, a_spec(MODEL), ready=True)
    assert await patient.claim("one", MODEL, 1) == []
    later = await put(patient)
    assert ids(await patient.claim("one", MODEL, 1)) == [later], "it delays no other job"
    (other,) = await patient.claim("two", MODEL, 1)
    assert other.job.id == left
    assert await patient.release(other)
    assert ids(await hasty.claim("one", MODEL, 1)) == [left], "it waited long enough"


async def test_late_jobs_expire_instead(queue: Queue) -> None:
    late = [await put(queue, deadline_at=time.time() - 1) for _ in range(3)]
    good = await put(queue, deadline_at=time.time() + 60)
    late.append(await put(queue, deadline_at=time.time() - 1))
    assert ids(await queue.claim("pool", MODEL, 4)) == [good]
    assert {(await queue.get(job)).state for job in late} == {JobState.EXPIRED}


async def test_an_idle_pool_waits_for_a_job(connect: Connect) -> None:
    front, pool = await connect(), await connect()
    waiting = asyncio.create_task(pool.claim("pool", MODEL, 4, wait_s=60))
    job_id = await put(front)
    assert ids(await asyncio.wait_for(waiting, 10)) == [job_id]


async def test_released_job_wakes_a_waiting_claim(connect: Connect) -> None:
    first, other = await connect(), await connect()
    job_id = await put(first)
    (claim,) = await first.claim("one", MODEL, 1)
    waiting = asyncio.create_task(other.claim("other", MODEL, 1, wait_s=60))
    await first.release(claim)
    assert ids(await asyncio.wait_for(waiting, 10)) == [job_id]


async def test_claim_without_jobs_returns_after_wait_s(queue: Queue) -> None:
    start = time.monotonic()
    assert await queue.claim("pool", MODEL, 4, wait_s=0.05) == []
    assert time.monotonic() - start >= 0.05


async def test_a_cancelled_claim_keeps_nothing(queue: Queue) -> None:
    """A canceled claim leaves the job queued and counts no attempt, whenever the cancellation
    arrives."""
    job_id = await put(queue)
    for turns in range(12):  # of the event loop, from before the command to after its response
        claiming = asyncio.create_task(queue.claim("pool", MODEL, 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        claiming.cancel()
        (answer,) = await asyncio.gather(claiming, return_exceptions=True)
        if isinstance(answer, list):  # the claim was complete
            await queue.release(answer[0])
        job = await queue.get(job_id)
        assert (job.state, job.attempts) == (JobState.QUEUED, 0)


async def test_tasks_race_for_jobs(connect: Connect) -> None:
    queues = [await connect() for _ in range(2)]
    put_ids = [await put(queues[0], bucket="ab"[i % 2]) for i in range(200)]

    async def pool(queue: Queue, name: str) -> list[str]:
        job_ids: list[str] = []
        while claims := await queue.claim(name, MODEL, 3):
            job_ids += ids(claims)
        return job_ids

    job_ids = await asyncio.gather(*(pool(queues[i % 2], f"pool-{i}") for i in range(8)))
    assert Counter(job for batch in job_ids for job in batch) == Counter(put_ids)


async def test_processes_race_for_jobs(redis_url: str, queue: Queue) -> None:
    put_ids = await asyncio.gather(*(put(queue, bucket="abc"[i % 3]) for i in range(500)))
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.service.jobs.racer",
            redis_url,
            name,
            cwd=Path(__file__).parents[3],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for name in ("one", "two")
    ]
    assert [await racer.stdout.readline() for racer in racers] == [b"ready\n"] * 2
    outputs = await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))
    job_ids = [output.decode().split() for output, _ in outputs]
    assert [racer.returncode for racer in racers] == [0, 0]
    assert all(job_ids), "a process claimed nothing"
    assert Counter(job_ids[0] + job_ids[1]) == Counter(put_ids)
    assert len(await queue.list(limit=1000, only=JobFilter(state=JobState.SUCCEEDED))) == 500


async def test_claims_of_one_job_have_growing_fences(queue: Queue) -> None:
    await put(queue)
    fences = []
    for _ in range(3):
        (claim,) = await queue.claim("pool", MODEL, 1)
        fences.append(claim.fence)
        await queue.release(claim)
    assert fences == [1, 2, 3]


@pytest.mark.parametrize("slots", [1, 2, 100])
async def test_claim_returns_at_most_the_queued_jobs(queue: Queue, slots: int) -> None:
    put_ids = [await put(queue) for _ in range(3)]
    claims = await queue.claim("pool", MODEL, slots)
    assert ids(claims) == put_ids[:slots]
    assert [await queue.finish(claim, [], USAGE) for claim in claims] == [True] * len(claims)


async def test_compilation_of_a_tenant_delays_no_other_tenant(queue: Queue) -> None:
    """A tenant with a new size in each job gets one job at a time, and delays no other tenant."""
    new = [a_job(bucket=f"new {n}", tenant="attacker") for n in range(600)]
    usual = [a_job(bucket="usual", tenant="other") for _ in range(2)]
    for job in [*new, *usual]:
        await queue.put(job)

    async def claimed(may_compile: bool) -> list[str]:
        claims = await queue.claim(
            "pool", MODEL, 4, WorkerState(warm=["usual"], may_compile=lambda: may_compile)
        )
        return [claim.job.bucket for claim in claims]

    assert await claimed(may_compile=False) == ["usual", "usual"]
    assert await claimed(may_compile=False) == []
    for job in (a_job(bucket="new 0"), a_job(bucket="usual")):
        await queue.put(job)
    buckets = [bucket for _ in range(2) for bucket in await claimed(may_compile=True)]
    assert sorted(buckets)[-1] == "usual", "it goes before the others for a while"
    assert all(count == 1 for count in map(buckets.count, buckets)), "no other job in the claim"


async def test_a_second_pass_has_to_be_compiled_for_too(queue: Queue) -> None:
    """A job is only as warm as the coldest bucket of its passes."""
    large = SecondPass(bucket="large", steps=8)
    twice = a_job(bucket="usual", second_pass=large)
    for job in (twice, a_job(bucket="usual"), a_job(bucket="usual")):
        await queue.put(job)

    async def claimed(may_compile: bool, *warm: str) -> list[bool]:
        claims = await queue.claim(
            "pool", MODEL, 4, WorkerState(warm=warm, may_compile=lambda: may_compile)
        )
        return [claim.job.second_pass is not None for claim in claims]

    assert await claimed(False, "usual") == [False], "the first one, which is cold, has no riders"
    assert await claimed(False, "usual") == [False]
    assert await claimed(False, "usual") == []
    await queue.put(a_job(bucket="usual"))
    assert await claimed(True, "usual") == [True], "alone, to be compiled for"
    await queue.put(a_job(bucket="usual", second_pass=large))
    assert await claimed(False, "usual", "large") == [False, True]


async def test_job_that_needs_compilation_is_claimed_separately(queue: Queue) -> None:
    for second in (None, SecondPass(bucket="large", steps=8), None):
        await queue.put(a_job(bucket="usual", second_pass=second))

    async def claimed() -> list[bool]:
        claims = await queue.claim(
            "pool", MODEL, 4, WorkerState(warm=["usual"], may_compile=lambda: True)
        )
        return [claim.job.second_pass is not None for claim in claims]

    assert [await claimed() for _ in range(3)] == [[False], [True], [False]]


async def test_a_tenants_bound_counts_second_passes(queue: Queue) -> None:
    bounded = {"tenant": "bounded", "max_compiling": 1, "bucket": "usual"}
    for n in range(3):
        await queue.put(a_job(**bounded, second_pass=SecondPass(bucket=f"large {n}", steps=8)))
    await queue.put(a_job(**bounded))

    async def claimed(pool: str) -> list[str]:
        claims = await queue.claim(
            pool, MODEL, 1, WorkerState(warm=["usual"], may_compile=lambda: True)
        )
        return [claim.job.second_pass.bucket if claim.job.second_pass else "" for claim in claims]

    buckets = [*await claimed("a"), *await claimed("b"), *await claimed("c")]
    assert sorted(buckets) == ["", "large 0"], "warm jobs are not limited"


async def test_max_compiling_bounds_a_tenant_over_all_workers(
    queue: Queue,
) -> None:
    for n in range(600):
        await queue.put(a_job(bucket=f"new {n}", tenant="bounded", max_compiling=2))
    await queue.put(a_job(bucket="usual", tenant="bounded", max_compiling=2))
    other = await put(queue, bucket="another", tenant="other")

    async def claimed(pool: str, *warm: str) -> list[Claim]:
        return await queue.claim(pool, MODEL, 1, WorkerState(warm=warm, may_compile=lambda: True))

    compiled = [claim for n in range(3) for claim in await claimed(f"pool-{n}")]
    buckets = sorted(claim.job.bucket for claim in compiled)
    assert buckets == ["another", "new 0", "new 1"], "the third one is another tenant's"
    assert other in ids(compiled)
    assert await claimed("pool-3") == []
    (usual,) = await claimed("pool-3", "usual")
    assert usual.job.bucket == "usual", (
        "its programs are compiled, unlike those of 598 jobs before it"
    )

    first = next(claim for claim in compiled if claim.job.bucket == "new 0")
    await queue.progress(first, 1, 4)
    (third,) = await claimed("pool-3")
    assert third.job.bucket == "new 2", "one of them is compiled"
    await queue.cancel(third.job.id)
    assert await claimed("pool-3") == [], "compiling for a canceled job goes on"


async def test_canceled_compilation_counts_for_its_expected_time(
    queue: Queue,
) -> None:
    for n in range(2):
        await queue.put(a_job(bucket=f"new {n}", max_compiling=1, compile_s=0.2))

    async def claimed() -> list[Claim]:
        return await queue.claim("pool", MODEL, 1, WorkerState(may_compile=lambda: True))

    (first,) = await claimed()
    await queue.cancel(first.job.id)
    claims: list[Claim] = []

    async def is_taken() -> bool:
        claims.extend(await claimed())
        return bool(claims)

    await eventually(is_taken)
    assert claims[0].job.bucket == "new 1"


async def test_released_job_does_not_block_itself(queue: Queue) -> None:
    """The first worker, which had begun to compile for the job, has released it."""
    await queue.put(a_job(bucket="new", max_compiling=1))
    for pool in ("first", "second"):
        (claim,) = await queue.claim(pool, MODEL, 1, WorkerState(may_compile=lambda: True))
        await queue.release(claim)
