"""Cost table: predictions from measured costs, and its storage in Redis."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.asyncio import Redis

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job, SecondPass
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.scheduling.cost_model import (
    MAX_COSTS,
    MAX_TRIAL_SHARE,
    MIN_VALID_S,
    CostKey,
    CostRow,
    CostTable,
    PoolFacts,
    changed,
    confirmed,
)
from service.jobs.scheduling.slot_simulation import Load
from tests.service.jobs.conftest import Connect
from tests.service.jobs.examples import MODEL

BLOCKING_S = 1.0
"""CPU time of predictions that take 0.1 s if each compares few sizes, and 13 s if it compares
all."""
SMALL, LARGE = "width=512,height=512", "width=1024,height=1024"


def row(step_s: float, encode_s: float = 0.5, decode_s: float = 1.0) -> CostRow:
    return CostRow(step_s=step_s, encode_s=encode_s, decode_s=decode_s)


def table(rows: dict[tuple[str, str, int], float], *ready: str) -> CostTable:
    return CostTable(
        {CostKey(*key): row(step_s) for key, step_s in rows.items()},
        {f"pool-{i}": PoolFacts(layout, 4) for i, layout in enumerate(ready)},
    )


def test_single_and_batched_cost() -> None:
    """A batch of four takes twice as long as one image: half a second per image."""
    costs = table({(SMALL, "a", 1): 1.0, (SMALL, "a", 4): 2.0}, "a")
    cost = costs.predict(SMALL, steps=10, images=1)
    assert cost is not None
    assert (cost.seconds, cost.device_seconds) == (0.5 + 10 * 1.0 + 1.0, 0.5 + 10 * 0.5 + 1.0)
    assert (cost.decode_s, cost.scaled) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("images", "sweep_s"),
    [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0), (5, 4.0), (9, 6.0)],
    # two as 1 + 1 or a padded four; five as 4 + a padded four; nine as three fours
)
def test_images_of_a_job_share_steps(images: int, sweep_s: float) -> None:
    costs = table({(SMALL, "a", 1): 1.0, (SMALL, "a", 4): 2.0}, "a")
    cost = costs.predict(SMALL, steps=10 * images, images=images)
    assert cost is not None
    assert cost.seconds == images * 1.5 + 10 * sweep_s
    assert cost.device_seconds == pytest.approx(images * (1.5 + 10 * 0.5))


@pytest.mark.parametrize(("rows", "alone_s", "share_s"), [(1, 1.0, 1.0), (4, 1.0, 0.25)])
def test_unpadded_and_padded_steps_of_one_size(rows: int, alone_s: float, share_s: float) -> None:
    """A step of one row takes as long again for each further job; a padded step does not."""
    costs = table({(SMALL, "a", rows): 1.0}, "a")
    cost = costs.predict(SMALL, steps=10, images=1)
    assert cost is not None
    assert cost.seconds == 1.5 + 10 * alone_s
    assert cost.device_seconds == 1.5 + 10 * share_s
    load = Load(10 * share_s, 10 * alone_s)
    assert [load.duration_s(slots=4, rows=busy) for busy in (1, 2, 4)] == [
        10.0 * max(1.0, busy * share_s) for busy in (1, 2, 4)
    ]


def test_fastest_ready_pool_is_used() -> None:
    rows = {(SMALL, "slow", 1): 4.0, (SMALL, "fast", 1): 1.0}
    assert table(rows, "slow", "fast").predict(SMALL, 10, 1).seconds == 11.5
    assert table(rows, "slow").predict(SMALL, 10, 1).seconds == 41.5
    assert table(rows).predict(SMALL, 10, 1).seconds == 11.5, "no worker is ready"


def test_unmeasured_size_uses_the_nearest_one() -> None:
    """Predicts from the nearest measured size: four times the pixels take four times as long in
    steps and decoding."""
    tiny = "width=64,height=64"
    costs = table({(SMALL, "a", 1): 1.0, (tiny, "a", 1): 0.001}, "a")
    cost = costs.predict(LARGE, 10, 1)
    assert cost is not None
    assert (cost.seconds, cost.scaled) == (0.5 + 10 * 4.0 + 4.0, 4.0)
    clip = table({("width=64,height=64,num_frames=5", "a", 1): 1.0}, "a")
    longer = clip.predict("width=64,height=64,num_frames=20", 1, 1)
    assert longer is not None and longer.scaled == 4.0


def test_read_pixels_cost_as_much_as_generated_ones() -> None:
    """An edit is never priced as text-to-image, nor vice versa."""
    edit = f"{SMALL},read_px={512 * 512}"
    drawn, edited = table({(SMALL, "a", 1): 1.0}, "a"), table({(edit, "a", 1): 2.0}, "a")
    predicted = drawn.predict(edit, 10, 1), edited.predict(SMALL, 10, 1)
    assert [cost and (cost.scaled, cost.seconds) for cost in predicted] == [
        (2.0, 0.5 + 10 * 2.0 + 2.0),
        (0.5, 0.5 + 10 * 1.0 + 0.5),
    ]


def test_extra_frames_cost_as_much_as_output_frames() -> None:
    clip = "width=64,height=64,num_frames=5"
    costs = table({(clip, "a", 1): 1.0}, "a")
    cost = costs.predict(f"{clip},read_frames=5", 1, 1)
    assert cost is not None and cost.scaled == 2.0


@pytest.mark.parametrize(
    ("known", "bucket"),
    [
        (CostTable(), SMALL),
        (table({}, "a"), SMALL),
        (table({(SMALL, "a", 1): 1.0}), "style=oil"),
        (table({("style=oil", "a", 1): 1.0}), SMALL),
        (table({(SMALL, "a", 1): 1.0}), "width=0,height=64"),
        (table({(SMALL, "a", 1): 1.0}), "width=0,height=64,read_px=64"),
    ],
)
def test_unknown_costs_give_no_prediction(known: CostTable, bucket: str) -> None:
    assert known.predict(bucket, 10, 1) is None


def test_slowness_is_against_the_fastest_ready_pool() -> None:
    rows = {
        (SMALL, "fast", 1): 1.0,
        (LARGE, "fast", 1): 4.0,
        (SMALL, "slow", 1): 2.0,
        (LARGE, "slow", 1): 12.0,
        (SMALL, "gone", 1): 0.1,
    }
    costs = table(rows, "fast", "slow")
    assert costs.slowness("fast") == 1.0
    assert costs.slowness("slow") == 2.5, "the median of 2 and 3"
    assert table(rows, "slow").slowness("slow") == 1.0, "no ready worker is faster"
    assert costs.slowness("unknown") == 1.0


def test_sizes_measured_by_only_one_pool_are_ignored() -> None:
    rows = {(SMALL, "fast", 1): 1.0, (SMALL, "slow", 1): 10.0}
    alone = {(f"width={side},height=64", "slow", 1): 1.0 for side in (64, 128, 256)}
    costs = table(rows | alone, "fast", "slow")
    assert costs.slowness("slow") == 10.0
    assert costs.slowness_by_bucket("slow") == {SMALL: 10.0}


def test_layouts_are_compared_by_different_measured_sizes() -> None:
    """The large size has four times the pixels, and takes twelve times as long."""
    costs = table({(SMALL, "fast", 1): 1.0, (LARGE, "slow", 1): 12.0}, "fast", "slow")
    assert (costs.slowness("fast"), costs.slowness("slow")) == (1.0, 3.0)
    assert costs.slowness_by_bucket("slow") == {}


def test_some_layout_has_slowness_one() -> None:
    """Otherwise each worker would leave a deadline to the other, and neither would accept it."""
    rows = {
        (SMALL, "a", 1): 1.0,
        (LARGE, "a", 1): 12.0,
        (SMALL, "b", 1): 4.0,
        (LARGE, "b", 1): 4.0,
    }
    costs = table(rows, "a", "b")
    assert costs.slowness_by_bucket("a") == {SMALL: 1.0, LARGE: 3.0}
    assert costs.slowness_by_bucket("b") == {SMALL: 4.0, LARGE: 1.0}
    assert (costs.slowness("a"), costs.slowness("b")) == (1.0, 1.25)


@pytest.mark.parametrize(
    ("age_s", "step_s", "bucket", "is_doubtful"),
    [
        (MIN_VALID_S - 1, 0.01, SMALL, False),
        (MIN_VALID_S + 1, 0.01, SMALL, True),
        (MIN_VALID_S + 1, 10.0, SMALL, False),  # a run takes 101.5 s: at most every 2,030 s
        (101.5 / MAX_TRIAL_SHARE + 1, 10.0, SMALL, True),
        (0.0, 1.0, "width=256,height=256", True),  # scaled down: rather too much
        (0.0, 1.0, LARGE, False),  # scaled up: rather too little
    ],
)
def test_costs_expire(age_s: float, step_s: float, bucket: str, is_doubtful: bool) -> None:
    costs = table({(SMALL, "a", 1): step_s}, "a")
    costs = CostTable(costs.rows, costs.pools, at=age_s)
    cost = costs.predict(bucket, 10, 1)
    assert cost is not None and costs.is_doubtful(cost) == is_doubtful
    assert not CostTable(costs.rows, {}, age_s).is_doubtful(cost), "no worker can measure it"


def test_estimates_apply_until_the_first_measurement() -> None:
    """Rows without samples predict, and do not mix with measured rows of the bucket."""
    estimate = row(1.0).model_copy(update={"samples": 0})
    keys = {name: CostKey(SMALL, name, 1) for name in ("a", "b")}
    pools = {"pool": PoolFacts("a", 4), "other": PoolFacts("b", 4)}
    costs = CostTable({keys["a"]: estimate}, pools)
    cost = costs.predict(SMALL, 10, 1)
    assert cost is not None and (cost.seconds, cost.is_estimated) == (11.5, True)
    assert costs.is_doubtful(cost), "a trial may show that it is faster"
    far = costs.predict(LARGE, 10, 1)
    assert far is not None and far.is_estimated and far.scaled == 4
    assert far.followed_by(cost).is_estimated and far.with_tail(1).is_estimated

    measured = CostTable({keys["a"]: estimate, keys["b"]: row(3.0)}, pools)
    cost = measured.predict(SMALL, 10, 1)
    assert cost is not None and (cost.seconds, cost.is_estimated) == (31.5, False)
    assert measured.slowness("b") == 1.0, "estimates say nothing of a worker's speed"

    batches = CostTable({keys["a"]: estimate, keys["a"]._replace(batch=4): row(2.0)}, pools)
    assert batches.timings["a"][SMALL].step_s == {4: 2.0}
    assert not batches.timings["a"][SMALL].is_estimated
    near = CostTable({keys["a"]: estimate, CostKey(LARGE, "a", 1): row(8.0)}, pools)
    cost = near.predict("width=768,height=1024", 10, 1)
    assert cost is not None and not cost.is_estimated, "scaled from the measured size"


def test_first_measurement_replaces_an_equal_estimate() -> None:
    key = CostKey(SMALL, "a", 1)
    estimate = row(1.0).model_copy(update={"samples": 0})
    assert changed({key: row(1.0)}, {key: estimate}, 0.05) == {key: row(1.0)}
    assert changed({key: estimate}, {key: estimate}, 0.05) == {}


def test_confirmed_costs() -> None:
    """Unchanged rows are reported again if they were measured again and the table's row is old."""
    key = CostKey(SMALL, "a", 1)
    before, after = row(1.0), row(1.0).model_copy(update={"samples": 29})
    current = CostTable({key: before.model_copy(update={"at": 100.0})}, at=121.0)
    assert confirmed({key: after}, {key: before}, current, 20).keys() == {key}
    assert confirmed({key: before}, {key: before}, current, 20) == {}, "nothing was measured"
    assert confirmed({key: after}, {key: before}, current, 30) == {}, (
        "another worker has reported it"
    )
    assert confirmed({key: after}, {}, CostTable(at=121.0), 20) == {}, (
        "a new row is no confirmation"
    )


def test_significant_cost_changes_are_reported() -> None:
    key, other = CostKey(SMALL, "a", 1), CostKey(LARGE, "a", 1)
    reported = {key: row(1.0)}
    assert changed({key: row(1.04), other: row(4.0)}, reported, 0.05).keys() == {other}
    assert changed({key: row(1.06)}, reported, 0.05).keys() == {key}
    assert changed({key: row(1.0, decode_s=0.9)}, reported, 0.05).keys() == {key}


async def test_the_table_is_shared(queue: Queue, a_spec: ModelSpec) -> None:
    key = CostKey(SMALL, 'a "layout", with: everything', 2)
    assert await queue.costs(MODEL) == CostTable()
    await queue.register("p", a_spec, ready=False, facts=PoolFacts(key.layout, 4))
    await queue.measured(MODEL, {key: row(1.25)})
    costs = await queue.costs(MODEL)
    assert costs.rows[key].at > 0
    assert costs.rows[key] == row(1.25).model_copy(update={"at": costs.rows[key].at})
    assert costs.pools == {}, "it is not ready"
    await queue.register("p", a_spec, ready=True, facts=PoolFacts(key.layout, 4))
    assert (await queue.costs(MODEL)).pools == {"p": PoolFacts(key.layout, 4)}
    assert await queue.costs("another") == CostTable()


async def test_costs_survive_their_pool(connect: Connect, a_spec: ModelSpec) -> None:
    key = CostKey(SMALL, "a", 1)
    queue, dies = await connect(), await connect(lease_s=0.1)
    await queue.register("leaves", a_spec, ready=True, facts=PoolFacts("a", 4))
    await queue.measured(MODEL, {key: row(1.0)})
    await queue.unregister("leaves", MODEL)
    await dies.register("dies", a_spec, ready=True, facts=PoolFacts("a", 4))
    async with asyncio.timeout(10):
        while (costs := await queue.costs(MODEL)).pools:
            pass  # each iteration is a round trip
    assert costs.predict(SMALL, 10, 1) is not None


async def test_the_oldest_rows_make_room(queue: Queue, empty_redis: Redis) -> None:
    oldest, newer = CostKey(SMALL, "oldest", 1), CostKey(SMALL, "newer", 1)
    for key in (oldest, newer):
        await queue.measured(MODEL, {key: row(1.0)})
    many = {CostKey(SMALL, "a", batch): row(1.0) for batch in range(1, MAX_COSTS)}
    await queue.measured(MODEL, many)
    assert (await queue.costs(MODEL)).rows.keys() == {newer, *many}
    assert await empty_redis.hlen(f"{PREFIX}costs:{MODEL}") == MAX_COSTS


def with_compiling(costs: CostTable, *warm: str, **compile_s: float) -> CostTable:
    """Add compile times to a table. Args: compile_s: seconds by bucket name; warm: compiled buckets
    of every worker."""
    rows = {
        key: entry.model_copy(update={"compile_s": compile_s.get(key.bucket)})
        for key, entry in costs.rows.items()
    }
    pools = {name: PoolFacts(pool.layout, 4, warm) for name, pool in costs.pools.items()}
    return CostTable(rows, pools)


def test_compiling_is_a_known_cost() -> None:
    rows = {("one", "a", 1): 1.0, ("other", "a", 1): 1.0, ("third", "b", 1): 1.0}
    costs = with_compiling(table(rows, "a"), "one", one=30.0, other=50.0, third=1.0)
    assert costs.compile_s("one") == 0, "a worker has compiled it"
    assert costs.compile_s("other") == 50.0
    assert costs.compile_s("new") == 40.0, "mean of other buckets on ready workers"
    assert with_compiling(table(rows, "a")).compile_s("new") == 0, "no compile time is known"
    assert with_compiling(table(rows), one=30.0).compile_s("one") == 0, "no worker is ready"


async def test_pools_report_compiled_buckets(queue: Queue, a_spec: ModelSpec) -> None:
    await queue.register("bare", a_spec, ready=True, facts=PoolFacts("a", 4))
    await queue.register("warm", a_spec, ready=True, facts=PoolFacts("a", 4, (SMALL,)))
    pools = (await queue.costs(a_spec.name)).pools
    assert pools == {"bare": PoolFacts("a", 4), "warm": PoolFacts("a", 4, (SMALL,))}


def test_loading_time_uses_the_best_pool() -> None:
    pools = {
        "empty": PoolFacts("x", 4, adapter_s=0.2),
        "half": PoolFacts("x", 4, adapters=("ink",), adapter_s=0.3),
    }
    table = CostTable({}, pools)
    assert table.load_s(["ink"]) == 0
    assert table.load_s(["ink", "rare"]) == 0.3
    assert table.load_s(["rare", "other"]) == 0.4
    assert table.load_s([]) == 0
    assert CostTable().load_s(["ink"]) == 0, "no worker is ready"


def test_passes_are_predicted_one_after_the_other() -> None:
    """Each pass is predicted by its own bucket. Time after the last step is the last pass's."""
    costs = CostTable(
        rows={
            CostKey(SMALL, "a", 1): CostRow(step_s=1, encode_s=0.5, decode_s=0.25),
            CostKey(LARGE, "a", 1): CostRow(step_s=4, encode_s=1, decode_s=2),
        }
    )
    job = Job(
        id="x", model="toy", bucket=SMALL, steps=10, second_pass=SecondPass(bucket=LARGE, steps=4)
    )
    cost = costs.predict_passes(job.passes(), 1)
    assert cost and (cost.seconds, cost.decode_s) == (6 * 1 + 4 * 4 + 3.75, 2)
    left = costs.predict_passes(job.passes(7), 1)
    assert left and left.seconds == 3 * 4 + 3.75
    unknown = Job(id="x", model="toy", bucket="odd", steps=1, second_pass=job.second_pass)
    assert costs.predict_passes(unknown.passes(), 1) is None


def test_predictions_of_many_sizes_are_quick() -> None:
    """Front ends predict in their event loop, and clients can fill a table with sizes."""
    sizes = [f"width={16 * width},height=1024" for width in range(1, 1001)]
    shared = {(size, layout, 1): 1.0 for size in sizes for layout in "ab"}
    halves = {(size, "ab"[number % 2], 1): 1.0 for number, size in enumerate(sizes)}
    requests = [(f"width={16 * width},height=1040", 20) for width in range(1, 1001)]
    tables = [table(rows, "a", "b") for rows in (shared, halves)]
    began = time.thread_time()
    for costs in tables:
        assert costs.slowness("a") <= 1.1
        assert all(costs.predict_passes([request], 1) for request in requests)
    assert time.thread_time() - began < BLOCKING_S
