"""Wait estimates, against the real queue scripts with simulated workers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from lab.load.fleet import MODEL, STEPS, Fleet, SimulatedPool
from service.jobs.model.job import (
    DEFAULT_TENANT,
    Detail,
    Job,
    JobState,
    SecondPass,
    Usage,
    new_job_id,
)
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, CostTable, PoolFacts
from service.jobs.scheduling.fair_share import Tenant
from service.jobs.scheduling.queue_snapshot import QueueSnapshot, UrgentJob
from service.jobs.scheduling.slot_simulation import Load, RunningJob
from service.jobs.scheduling.wait_estimator import Rules, WaitEstimate, WaitEstimator
from service.settings.queue import QueueSettings
from tests.service.jobs.examples import a_snapshot

PICTURE, CLIP = "width=512,height=512", "width=512,height=512,num_frames=17"
COSTS = {PICTURE: (2.0, 6.0), CLIP: (40.0, 100.0)}
"""Seconds alone and in a full batch of four: 1.5 and 25 device-seconds."""
POOLS = {
    "one slot": [("a", 1, 1.0)],
    "four slots": [("a", 4, 1.0)],
    "unequal pools": [("a", 4, 1.0), ("b", 4, 1.0), ("slow", 4, 3.0)],
}
DEFAULTS = QueueSettings()
RULES = Rules(DEFAULTS.priority_advance_s, DEFAULTS.deadline_credit_s)


async def put(queue: Queue, table: CostTable, tenant: str, bucket: str, **fields: object) -> Job:
    """Submit a job with its predicted costs, as the front end does."""
    cost = table.predict(bucket, STEPS, 1)
    assert cost is not None
    job = Job(
        id=new_job_id(), model=MODEL, bucket=bucket, tenant=tenant, steps=STEPS,
        cost=cost.device_seconds, run_s=cost.seconds,
    )  # fmt: skip
    return (await queue.put(job.model_copy(update=fields)))[0]


async def look(queue: Queue) -> WaitEstimator:
    return WaitEstimator(await queue.queue_snapshot(MODEL), await queue.costs(MODEL), RULES)


async def predicted(queue: Queue, jobs: Sequence[Job]) -> dict[str, WaitEstimate]:
    """Estimated places of the jobs that are still queued."""
    outlook = await look(queue)
    ranks = {job.id: (job, await queue.rank(job)) for job in jobs}
    return {
        name: outlook.estimate(job, rank) for name, (job, rank) in ranks.items() if rank is not None
    }


def in_order(started: dict[str, float], places: dict[str, WaitEstimate]) -> dict[str, int]:
    """Order in which the estimated jobs started."""
    return {name: n for n, name in enumerate(name for name in started if name in places)}


@pytest.mark.parametrize("pools", POOLS.values(), ids=POOLS.keys())
@pytest.mark.parametrize("mixed", [False, True], ids=["alike", "mixed"])
async def test_positions_and_waits(
    queue: Queue, pools: list[tuple[str, int, float]], mixed: bool
) -> None:
    """Thirty tenants; three of them have long backlogs, of one kind of job or of both.

    If a tenant's jobs are alike, each starts at its estimated position, up to one job. If videos of
    25 device-seconds mix with images of 1.5, a tenant is represented by its mean. Waits are then a
    few percent off, or up to a third where the next worker decides whether a job takes 100 s or
    300.
    """
    rng = random.Random(5)
    fleet = Fleet(queue, [SimulatedPool(*pool) for pool in pools])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    heavy = {"a": (60, 1.0), "b": (60, 2.0), "c": (30, 4.0)}
    entries = [(name, weight) for name, (count, weight) in heavy.items() for _ in range(count)]
    entries += [(f"light-{n:02}", 1.0) for n in range(27) for _ in range(rng.randint(1, 3))]
    rng.shuffle(entries)
    jobs = []
    for tenant, weight in entries:
        is_clip = rng.random() < 0.15 if mixed else tenant == "c"
        bucket = CLIP if is_clip else PICTURE
        jobs.append(await put(queue, table, tenant, bucket, weight=weight))
    await fleet.run(until=50.0)
    await fleet.report()
    places = await predicted(queue, jobs)
    assert len(places) > 50
    asked_at = fleet.now
    await fleet.run()
    actual = in_order(fleet.started, places)
    off = [abs(places[name].position - number) for name, number in actual.items()]
    late = [abs((places[n].ends_s or 0) - (fleet.ended[n] - asked_at)) for n in actual]
    waits = [fleet.ended[n] - asked_at for n in actual]
    assert sum(off) / len(off) <= (6 if mixed else 1)  # jobs, of about two hundred
    assert sum(late) / sum(waits) <= (0.15 if len(pools) == 1 else 0.35)


async def test_deadlines_go_first_within_the_credit(queue: Queue) -> None:
    """Two tenants with deadlines, one without: urgent jobs overtake the rest as far as credit
    allows."""
    rng = random.Random(6)
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    jobs = []
    for _ in range(120):
        tenant = rng.choice(["patient", "hurried", "late"])
        soon = {"deadline_at": time.time() + rng.uniform(10_000, 20_000)}
        jobs.append(await put(queue, table, tenant, PICTURE, **soon if tenant != "patient" else {}))
    places = await predicted(queue, jobs)
    await fleet.run()
    assert_positions(places, in_order(fleet.started, places), within=3)


async def test_estimate_of_a_new_job_matches_its_rank(queue: Queue) -> None:
    fleet = Fleet(queue, [SimulatedPool("a", 2)])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    for tenant in ("a", "a", "a", "b", "c"):
        await put(queue, table, tenant, PICTURE)
    for tenant in ("a", "b", "z"):
        (outlook, job) = await look(queue), await put(queue, table, tenant, PICTURE)
        rank = await queue.rank(job)
        assert rank is not None
        assert outlook.new_job_estimate(job) == (await look(queue)).estimate(job, rank)
        await queue.cancel(job.id)


async def test_tenant_above_its_fair_share_waits(queue: Queue) -> None:
    """The tenant's tag is ahead, although none of its jobs are queued."""
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    await put(queue, table, "greedy", CLIP)
    for _ in range(30):
        await put(queue, table, "steady", PICTURE)
    await queue.claim("a", MODEL, 1)
    again = await put(queue, table, "greedy", PICTURE)
    await queue.cancel(again.id)
    place = (await look(queue)).new_job_estimate(again)
    seconds = table.predict(CLIP, STEPS, 1).device_seconds
    assert place.position == pytest.approx(seconds / again.cost, abs=1)


async def test_positions_include_jobs_accepted_since_the_snapshot(queue: Queue) -> None:
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce(COSTS)
    table, outlook = await queue.costs(MODEL), await look(queue)
    soon = {"deadline_at": time.time() + 1000}
    positions = []
    for _ in range(3):
        job = await put(queue, table, "a", PICTURE, **soon)
        positions.append(outlook.new_job_estimate(job).position)
        outlook.add_accepted(job)
    assert positions == [0, 1, 2]


async def test_jobs_accepted_since_the_snapshot_are_ahead(queue: Queue) -> None:
    """Accepted jobs count for a tenant that has queued jobs too, even after an estimate."""
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    await put(queue, table, "a", PICTURE)
    outlook, positions = await look(queue), []
    for number in range(3):
        plain = await put(queue, table, f"other {number}", PICTURE)
        outlook.new_job_estimate(plain)
        job = await put(queue, table, "a", PICTURE, deadline_at=time.time() + 1000 + number)
        outlook.add_accepted(job)
        positions.append(
            outlook.new_job_estimate(job.model_copy(update={"deadline_at": None})).position
        )
    assert positions == [2, 3, 4]


@pytest.mark.parametrize(
    ("tag", "mark"), [(0.0, "is_credited"), (100.0, "is_guaranteed")], ids=["at its share", "ahead"]
)
async def test_deadlines_are_kept_until_the_credit_is_used_up(tag: float, mark: str) -> None:
    """Two workers give credit of twenty device-seconds for jobs with deadlines, the new one
    included, in any order. A tenant behind its share uses credit; otherwise its turn decides."""
    facts = {name: PoolFacts("x", 1) for name in "ab"}
    row = CostRow(step_s=0.4, encode_s=0, decode_s=0)
    table = CostTable({CostKey(PICTURE, "x", 1): row}, facts)
    look = QueueSnapshot(now=1000.0, idle={DEFAULT_TENANT: tag})
    outlook = WaitEstimator(look, table, Rules(30.0, 10.0))
    marks = []
    for number in range(4):
        job = Job(
            id=f"job-{number}", model=MODEL, bucket=PICTURE, steps=STEPS, cost=8.0, run_s=8.0,
            deadline_at=1500.0 - number,
        )  # fmt: skip
        place = outlook.new_job_estimate(job)
        marks.append([name for name in ("is_credited", "is_guaranteed") if getattr(place, name)])
        outlook.add_accepted(place.mark_job(job))
    assert marks == [[mark], [mark], [], []]
    patient = outlook.new_job_estimate(Job(id="patient", model=MODEL, bucket=PICTURE, cost=8.0))
    assert not (patient.is_credited or patient.is_guaranteed)


async def test_new_deadline_does_not_break_a_waiting_one() -> None:
    """The worker is free in five seconds; a job of ten seconds must begin in eight. A job of two
    seconds fits before it. A job of six follows it, unless the other may begin later."""
    row = CostRow(step_s=0.1, encode_s=0, decode_s=0)
    table = CostTable({CostKey(PICTURE, "x", 1): row}, {"a": PoolFacts("x", 1)})
    running = [RunningJob("a", Load(10.0, 10.0), 0.5)]

    def ends_s(seconds: float, begins_in_s: float) -> float:
        other = UrgentJob(1000.0 + begins_in_s, "other", 10.0, "other")
        tenants = {"other": Tenant("other", 0.0, 0.0, 10.0, 1.0, 1)}
        look = QueueSnapshot(now=1000.0, tenants=tenants, urgent=[other], running=running)
        job = Job(
            id="job", model=MODEL, bucket=PICTURE, steps=round(10 * seconds), cost=seconds,
            run_s=seconds, deadline_at=1000.0 + 7.0 + seconds,
        )  # fmt: skip
        return WaitEstimator(look, table, RULES).new_job_estimate(job).ends_s or 0.0

    assert ends_s(2.0, begins_in_s=8.0) == pytest.approx(5.0 + 2.0)
    assert ends_s(6.0, begins_in_s=8.0) == pytest.approx(5.0 + 10.0 + 6.0)
    assert ends_s(6.0, begins_in_s=20.0) == pytest.approx(5.0 + 6.0)


async def test_deadline_job_waits_for_a_fast_enough_worker(queue: Queue) -> None:
    """The slow worker is free. Jobs with tight deadlines wait for the fast one, one after the
    other, and end as estimated."""
    fleet = Fleet(queue, [SimulatedPool("fast", 1), SimulatedPool("slow", 1, slowness=10.0)])
    await fleet.announce({PICTURE: (20.0, 20.0)})
    table = await queue.costs(MODEL)
    deadlines = [time.time() + 100 + n for n in range(4)]
    jobs = [await put(queue, table, "a", PICTURE, deadline_at=deadline) for deadline in deadlines]
    places = await predicted(queue, jobs)
    await fleet.run()
    ends = {name: place.ends_s for name, place in places.items()}
    assert fleet.ended == pytest.approx(ends)
    patient = await put(queue, table, "a", PICTURE, deadline_at=time.time() + 300)
    assert (await predicted(queue, [patient]))[patient.id].starts_s == 0


async def test_job_fits_after_the_full_batch_has_drained(queue: Queue) -> None:
    """The job takes two seconds alone, six in a full batch, and its deadline is in four. Twenty
    jobs before it keep the batch full for half a minute, not for six seconds."""
    fleet = Fleet(queue, [SimulatedPool("a", 4)])
    await fleet.announce(COSTS)
    table = await queue.costs(MODEL)
    for _ in range(24):
        await put(queue, table, "a", PICTURE)
    await fleet.run(until=1.0)
    soon = {"deadline_at": time.time() + 4, "run_s": 2.0}
    job = Job(id="job", model=MODEL, bucket=PICTURE, steps=STEPS, cost=1.5, **soon)
    outlook = await look(queue)
    assert (outlook.new_job_estimate(job).ends_s or 0) > 4
    wait_s = outlook.retry_wait_s(job, 4.0)
    assert wait_s is not None
    assert 29 <= wait_s <= 36  # 24 jobs of 1.5 s each, until the batch empties
    await fleet.run(until=fleet.now + wait_s)
    await fleet.report()
    assert ((await look(queue)).new_job_estimate(job).ends_s or 0) <= 4


async def test_estimate_uses_pools_that_are_fast_for_the_bucket() -> None:
    """One of two workers is free, but takes ten times as long for videos."""
    steps = {("a", PICTURE): 0.1, ("a", CLIP): 1.0, ("b", PICTURE): 0.1, ("b", CLIP): 10.0}
    rows = {
        CostKey(bucket, layout, 1): CostRow(step_s=step_s, encode_s=0, decode_s=0)
        for (layout, bucket), step_s in steps.items()
    }
    table = CostTable(rows, {name: PoolFacts(name, 1) for name in "ab"})
    running = [RunningJob("a", Load(20.0, 20.0), 0.5)]
    outlook = WaitEstimator(QueueSnapshot(now=1000.0, running=running), table, RULES)
    picture, clip = (
        Job(id=name, model=MODEL, bucket=bucket, steps=STEPS, deadline_at=1040.0)
        for name, bucket in (("picture", PICTURE), ("clip", CLIP))
    )
    assert outlook.new_job_estimate(picture).ends_s == pytest.approx(2.0)
    assert outlook.new_job_estimate(clip).ends_s == pytest.approx(10.0 + 20.0)
    patient = clip.model_copy(update={"deadline_at": None})
    assert outlook.new_job_estimate(patient).ends_s == pytest.approx(200.0)


async def test_wait_estimate_from_a_sample_of_running_jobs() -> None:
    """A snapshot with 25 of a hundred equal workers gives the same estimates as all of them."""
    facts = {f"p{i:03}": PoolFacts("x", 1) for i in range(100)}
    row = CostRow(step_s=0.1, encode_s=0, decode_s=0)
    table = CostTable({CostKey(PICTURE, "x", 1): row}, facts)
    running = [RunningJob(name, Load(2.0, 2.0), 0.5) for name in facts]
    tenants = {"a": Tenant("a", 0.0, 0.0, 2000.0, 1.0, 1000)}
    full = QueueSnapshot(tenants=tenants, running=running)
    part = QueueSnapshot(tenants=tenants, running=running[:25], coverage=0.25)
    job = Job(id="job", model=MODEL, bucket=PICTURE, tenant="a", steps=STEPS)
    for rank in (0, 150, 990):
        sees_all, sees_part = (
            WaitEstimator(snapshot, table, RULES).estimate(job, rank) for snapshot in (full, part)
        )
        assert sees_part.position == sees_all.position
        assert sees_part.ends_s == pytest.approx(sees_all.ends_s, abs=2.0)  # one job


async def test_wait_excludes_finished_steps_of_a_snapshot(queue: Queue) -> None:
    """A released video of forty seconds has a snapshot at three quarters: the estimates of it and
    of the next job count ten seconds."""
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce({CLIP: (40.0, 40.0), PICTURE: (2.0, 2.0)})
    table = await queue.costs(MODEL)
    clip = await put(queue, table, "a", CLIP)
    assert (await predicted(queue, [clip]))[clip.id].ends_s == pytest.approx(40)
    (claim,) = await queue.claim("a", MODEL, 1)
    await queue.snapshot(claim, [a_snapshot(claim, step=3 * STEPS // 4)])
    await queue.release(claim)
    clip = await queue.get(clip.id) or clip
    picture = await put(queue, table, "b", PICTURE)
    after = await predicted(queue, [clip, picture])
    assert [after[job.id].ends_s for job in (clip, picture)] == pytest.approx([10, 12])
    unknown = WaitEstimator(await queue.queue_snapshot(MODEL), CostTable({}, table.pools), RULES)
    assert unknown.estimate(clip, 0).ends_s == pytest.approx(10), "by the job's own prediction"
    (again,) = await queue.claim("a", MODEL, 1)
    await queue.finish(again, [], Usage(steps=STEPS, device_seconds=40.0))
    assert (await predicted(queue, [picture]))[picture.id].ends_s == pytest.approx(2)


async def test_resumable_job_with_a_deadline_goes_first(queue: Queue) -> None:
    fleet = Fleet(queue, [SimulatedPool("a", 1)])
    await fleet.announce({CLIP: (40.0, 40.0), PICTURE: (2.0, 2.0)})
    table = await queue.costs(MODEL)
    await put(queue, table, "a", CLIP, deadline_at=time.time() + 1000)
    (claim,) = await queue.claim("a", MODEL, 1)
    await queue.snapshot(claim, [a_snapshot(claim, step=STEPS // 2)])
    await queue.release(claim)
    picture = await put(queue, table, "b", PICTURE)
    assert (await predicted(queue, [picture]))[picture.id].starts_s == pytest.approx(20)


def assert_positions(
    places: dict[str, WaitEstimate], actual: dict[str, int], within: float
) -> None:
    off = {name: places[name].position - number for name, number in actual.items()}
    assert max(map(abs, off.values())) <= within, off


COMPILED_S = 38.0


def compiled_elsewhere() -> CostTable:
    """Table of one worker, which has only another bucket's programs."""
    other = CostRow(step_s=1.0, encode_s=0, decode_s=0, compile_s=COMPILED_S)
    picture = CostRow(step_s=1.0, encode_s=0, decode_s=0)
    rows = {CostKey(CLIP, "a", 1): other, CostKey(PICTURE, "a", 1): picture}
    return CostTable(rows, {"pool": PoolFacts("a", 1, (CLIP,))})


@pytest.mark.parametrize("first", [PICTURE, CLIP])
def test_wait_estimate_counts_each_pass_bucket_once(first: str) -> None:
    outlook = WaitEstimator(QueueSnapshot(now=1000.0), compiled_elsewhere(), RULES)
    later = SecondPass(bucket=PICTURE, steps=2)
    job = Job(id="j", model=MODEL, bucket=first, steps=5, second_pass=later)
    assert outlook.new_job_estimate(job).ends_s == COMPILED_S + 5.0


def test_wait_includes_compilation() -> None:
    outlook = WaitEstimator(QueueSnapshot(now=1000.0), compiled_elsewhere(), RULES)
    job = Job(id="j", model=MODEL, bucket=PICTURE, steps=5, compile_s=COMPILED_S)
    assert outlook.new_job_estimate(job).ends_s == COMPILED_S + 5.0
    assert outlook.new_job_estimate(job.model_copy(update={"bucket": CLIP})).ends_s == 5.0


@pytest.mark.parametrize(
    ("detail", "left_s"),
    [
        (None, COMPILED_S),
        (Detail(stage="compiling", since=990.0, expected_s=30.0), 20.0),
        (Detail(stage="compiling", since=990.0), COMPILED_S - 10.0),
        (Detail(stage="compiling", since=900.0, expected_s=30.0), 25.0),  # 100 s / 4
        (Detail(stage="denoising", since=990.0), 0.0),
    ],
)
def test_wait_of_a_running_job_includes_remaining_compilation(
    detail: Detail | None, left_s: float
) -> None:
    job = Job(
        id="j", model=MODEL, bucket=PICTURE, steps=5, compile_s=COMPILED_S, pool="pool",
        state=JobState.RUNNING, detail=detail,
    )  # fmt: skip
    outlook = WaitEstimator(QueueSnapshot(now=1000.0), compiled_elsewhere(), RULES)
    assert outlook.running_s(job) == left_s + 5.0
