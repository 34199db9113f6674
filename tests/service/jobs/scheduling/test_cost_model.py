"""The table of costs: what is predicted from it, and how it lies in Redis."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job, SecondPass
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.scheduling.cost_model import (
    MAX_COSTS,
    STANDS_S,
    TRIED_SHARE,
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

SMALL, LARGE = "width=512,height=512", "width=1024,height=1024"


def row(step_s: float, encode_s: float = 0.5, decode_s: float = 1.0) -> CostRow:
    return CostRow(step_s=step_s, encode_s=encode_s, decode_s=decode_s)


def table(rows: dict[tuple[str, str, int], float], *ready: str) -> CostTable:
    return CostTable(
        {CostKey(*key): row(step_s) for key, step_s in rows.items()},
        {f"pool-{i}": PoolFacts(layout, 4) for i, layout in enumerate(ready)},
    )


def test_alone_and_in_company() -> None:
    """Four in a batch take twice as long as one: half a second each."""
    known = table({(SMALL, "a", 1): 1.0, (SMALL, "a", 4): 2.0}, "a")
    cost = known.predict(SMALL, steps=10, images=1)
    assert cost is not None
    assert (cost.seconds, cost.device_seconds) == (0.5 + 10 * 1.0 + 1.0, 0.5 + 10 * 0.5 + 1.0)
    assert (cost.decode_s, cost.scaled) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("images", "sweep_s"),
    [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0), (5, 4.0), (9, 6.0)],
    # two as 1 + 1 or as a padded four; five as 4 + a padded four; nine as three of these
)
def test_several_pictures_are_stepped_together(images: int, sweep_s: float) -> None:
    known = table({(SMALL, "a", 1): 1.0, (SMALL, "a", 4): 2.0}, "a")
    cost = known.predict(SMALL, steps=10 * images, images=images)
    assert cost is not None
    assert cost.seconds == images * 1.5 + 10 * sweep_s
    assert cost.device_seconds == pytest.approx(images * (1.5 + 10 * 0.5))


@pytest.mark.parametrize(("rows", "alone_s", "share_s"), [(1, 1.0, 1.0), (4, 1.0, 0.25)])
def test_where_steps_have_one_size(rows: int, alone_s: float, share_s: float) -> None:
    """A row at a time, whoever comes takes as long again; a padded step takes as long alone."""
    known = table({(SMALL, "a", rows): 1.0}, "a")
    cost = known.predict(SMALL, steps=10, images=1)
    assert cost is not None
    assert cost.seconds == 1.5 + 10 * alone_s
    assert cost.device_seconds == 1.5 + 10 * share_s
    load = Load(10 * share_s, 10 * alone_s)
    assert [load.lasts(slots=4, rows=busy) for busy in (1, 2, 4)] == [
        10.0 * max(1.0, busy * share_s) for busy in (1, 2, 4)
    ]


def test_the_fastest_that_is_there() -> None:
    rows = {(SMALL, "slow", 1): 4.0, (SMALL, "fast", 1): 1.0}
    assert table(rows, "slow", "fast").predict(SMALL, 10, 1).seconds == 11.5  # type: ignore[union-attr]
    assert table(rows, "slow").predict(SMALL, 10, 1).seconds == 41.5  # type: ignore[union-attr]
    assert table(rows).predict(SMALL, 10, 1).seconds == 11.5, "nobody is there yet"  # type: ignore[union-attr]


def test_a_shape_that_nobody_has_measured() -> None:
    """Four times the pixels of the nearest one: of steps and decoding four times as long."""
    tiny = "width=64,height=64"
    known = table({(SMALL, "a", 1): 1.0, (tiny, "a", 1): 0.001}, "a")
    cost = known.predict(LARGE, 10, 1)
    assert cost is not None
    assert (cost.seconds, cost.scaled) == (0.5 + 10 * 4.0 + 4.0, 4.0)
    clip = table({("width=64,height=64,num_frames=5", "a", 1): 1.0}, "a")
    longer = clip.predict("width=64,height=64,num_frames=20", 1, 1)
    assert longer is not None and longer.scaled == 4.0


def test_what_steps_read_counts_as_what_they_draw() -> None:
    """An edit is never priced as an image of words alone, nor the other way round."""
    edit = f"{SMALL},read_px={512 * 512}"
    drawn, edited = table({(SMALL, "a", 1): 1.0}, "a"), table({(edit, "a", 1): 2.0}, "a")
    predicted = drawn.predict(edit, 10, 1), edited.predict(SMALL, 10, 1)
    assert [cost and (cost.scaled, cost.seconds) for cost in predicted] == [
        (2.0, 0.5 + 10 * 2.0 + 2.0),
        (0.5, 0.5 + 10 * 1.0 + 0.5),
    ]


def test_frames_that_steps_draw_beside_the_video_count_as_its_own() -> None:
    clip = "width=64,height=64,num_frames=5"
    known = table({(clip, "a", 1): 1.0}, "a")
    cost = known.predict(f"{clip},read_frames=5", 1, 1)
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
def test_where_nothing_is_known_nothing_is_said(known: CostTable, bucket: str) -> None:
    assert known.predict(bucket, 10, 1) is None


def test_slowness_is_against_the_fastest_ready_pool() -> None:
    rows = {
        (SMALL, "fast", 1): 1.0,
        (LARGE, "fast", 1): 4.0,
        (SMALL, "slow", 1): 2.0,
        (LARGE, "slow", 1): 12.0,
        (SMALL, "gone", 1): 0.1,
    }
    known = table(rows, "fast", "slow")
    assert known.slowness("fast") == 1.0
    assert known.slowness("slow") == 2.5, "the median of 2 and 3"
    assert table(rows, "slow").slowness("slow") == 1.0, "there is none that is faster"
    assert known.slowness("unknown") == 1.0


def test_what_one_alone_has_measured_does_not_count() -> None:
    rows = {(SMALL, "fast", 1): 1.0, (SMALL, "slow", 1): 10.0}
    alone = {(f"width={side},height=64", "slow", 1): 1.0 for side in (64, 128, 256)}
    known = table(rows | alone, "fast", "slow")
    assert known.slowness("slow") == 10.0
    assert known.slowness_by_bucket("slow") == {SMALL: 10.0}


def test_pools_that_have_measured_different_sizes_are_compared_by_them() -> None:
    """The large size has four times the pixels, and takes twelve times as long."""
    known = table({(SMALL, "fast", 1): 1.0, (LARGE, "slow", 1): 12.0}, "fast", "slow")
    assert (known.slowness("fast"), known.slowness("slow")) == (1.0, 3.0)
    assert known.slowness_by_bucket("slow") == {}


def test_of_pools_that_are_good_at_different_things_one_is_the_fastest() -> None:
    """Otherwise each would leave a deadline to the other, and nobody would take it."""
    rows = {
        (SMALL, "a", 1): 1.0,
        (LARGE, "a", 1): 12.0,
        (SMALL, "b", 1): 4.0,
        (LARGE, "b", 1): 4.0,
    }
    known = table(rows, "a", "b")
    assert known.slowness_by_bucket("a") == {SMALL: 1.0, LARGE: 3.0}
    assert known.slowness_by_bucket("b") == {SMALL: 4.0, LARGE: 1.0}
    assert (known.slowness("a"), known.slowness("b")) == (1.0, 1.25)


@pytest.mark.parametrize(
    ("age_s", "step_s", "bucket", "is_doubtful"),
    [
        (STANDS_S - 1, 0.01, SMALL, False),
        (STANDS_S + 1, 0.01, SMALL, True),
        (STANDS_S + 1, 10.0, SMALL, False),  # a try takes 101.5 s, and may every 2,030 s
        (101.5 / TRIED_SHARE + 1, 10.0, SMALL, True),
        (0.0, 1.0, "width=256,height=256", True),  # scaled down: too much, if anything
        (0.0, 1.0, LARGE, False),  # scaled up: too little, if anything
    ],
)
def test_how_long_a_cost_stands(
    age_s: float, step_s: float, bucket: str, is_doubtful: bool
) -> None:
    known = table({(SMALL, "a", 1): step_s}, "a")
    known = CostTable(known.rows, known.pools, at=age_s)
    cost = known.predict(bucket, 10, 1)
    assert cost is not None and known.is_doubtful(cost) == is_doubtful
    assert not CostTable(known.rows, {}, age_s).is_doubtful(cost), "nobody is there to try it"


def test_what_is_confirmed() -> None:
    """Measured again, and old in the table: told again although it has not changed."""
    key = CostKey(SMALL, "a", 1)
    before, after = row(1.0), row(1.0).model_copy(update={"samples": 29})
    there = CostTable({key: before.model_copy(update={"at": 100.0})}, at=121.0)
    assert confirmed({key: after}, {key: before}, there, 20).keys() == {key}
    assert confirmed({key: before}, {key: before}, there, 20) == {}, "nothing was measured"
    assert confirmed({key: after}, {key: before}, there, 30) == {}, "another pool has told of it"
    assert confirmed({key: after}, {}, CostTable(at=121.0), 20) == {}, "that is news, not this"


def test_what_is_worth_telling() -> None:
    key, other = CostKey(SMALL, "a", 1), CostKey(LARGE, "a", 1)
    told = {key: row(1.0)}
    assert changed({key: row(1.04), other: row(4.0)}, told, 0.05).keys() == {other}
    assert changed({key: row(1.06)}, told, 0.05).keys() == {key}
    assert changed({key: row(1.0, decode_s=0.9)}, told, 0.05).keys() == {key}


async def test_the_table_is_shared(queue: Queue, a_spec: ModelSpec) -> None:
    key = CostKey(SMALL, 'a "layout", with: everything', 2)
    assert await queue.costs(MODEL) == CostTable()
    await queue.register("p", a_spec, ready=False, facts=PoolFacts(key.layout, 4))
    await queue.measured(MODEL, {key: row(1.25)})
    known = await queue.costs(MODEL)
    assert known.rows[key].at > 0
    assert known.rows[key] == row(1.25).model_copy(update={"at": known.rows[key].at})
    assert known.pools == {}, "it is not ready"
    await queue.register("p", a_spec, ready=True, facts=PoolFacts(key.layout, 4))
    assert (await queue.costs(MODEL)).pools == {"p": PoolFacts(key.layout, 4)}
    assert await queue.costs("another") == CostTable()


async def test_rows_outlive_their_pools(connect: Connect, a_spec: ModelSpec) -> None:
    key = CostKey(SMALL, "a", 1)
    queue, dies = await connect(), await connect(lease_s=0.1)
    await queue.register("leaves", a_spec, ready=True, facts=PoolFacts("a", 4))
    await queue.measured(MODEL, {key: row(1.0)})
    await queue.unregister("leaves", MODEL)
    await dies.register("dies", a_spec, ready=True, facts=PoolFacts("a", 4))
    async with asyncio.timeout(10):
        while (known := await queue.costs(MODEL)).pools:
            pass  # each look is a round trip
    assert known.predict(SMALL, 10, 1) is not None


async def test_the_oldest_rows_make_room(queue: Queue, empty_redis: Redis) -> None:
    oldest, newer = CostKey(SMALL, "oldest", 1), CostKey(SMALL, "newer", 1)
    for key in (oldest, newer):
        await queue.measured(MODEL, {key: row(1.0)})
    many = {CostKey(SMALL, "a", batch): row(1.0) for batch in range(1, MAX_COSTS)}
    await queue.measured(MODEL, many)
    assert (await queue.costs(MODEL)).rows.keys() == {newer, *many}
    assert await empty_redis.hlen(f"{PREFIX}costs:{MODEL}") == MAX_COSTS


def with_compiling(known: CostTable, *warm: str, **compile_s: float) -> CostTable:
    """Args: compile_s: of each bucket's rows, by its name; warm: of every pool."""
    rows = {
        key: one.model_copy(update={"compile_s": compile_s.get(key.bucket)})
        for key, one in known.rows.items()
    }
    pools = {name: PoolFacts(pool.layout, 4, warm) for name, pool in known.pools.items()}
    return CostTable(rows, pools)


def test_compiling_is_a_known_cost() -> None:
    rows = {("one", "a", 1): 1.0, ("other", "a", 1): 1.0, ("third", "b", 1): 1.0}
    known = with_compiling(table(rows, "a"), "one", one=30.0, other=50.0, third=1.0)
    assert known.compile_s("one") == 0, "a pool has it"
    assert known.compile_s("other") == 50.0
    assert known.compile_s("new") == 40.0, "by what others took on pools that are there"
    assert with_compiling(table(rows, "a")).compile_s("new") == 0, "nobody has compiled anything"
    assert with_compiling(table(rows), one=30.0).compile_s("one") == 0, "no pool would do it now"


async def test_pools_say_what_they_need_not_compile(queue: Queue, a_spec: ModelSpec) -> None:
    await queue.register("bare", a_spec, ready=True, facts=PoolFacts("a", 4))
    await queue.register("warm", a_spec, ready=True, facts=PoolFacts("a", 4, (SMALL,)))
    pools = (await queue.costs(a_spec.name)).pools
    assert pools == {"bare": PoolFacts("a", 4), "warm": PoolFacts("a", 4, (SMALL,))}


def test_loading_counts_what_the_best_pool_lacks() -> None:
    pools = {
        "empty": PoolFacts("x", 4, adapter_s=0.2),
        "half": PoolFacts("x", 4, adapters=("ink",), adapter_s=0.3),
    }
    table = CostTable({}, pools)
    assert table.load_s(["ink"]) == 0
    assert table.load_s(["ink", "rare"]) == 0.3
    assert table.load_s(["rare", "other"]) == 0.4
    assert table.load_s([]) == 0
    assert CostTable().load_s(["ink"]) == 0, "nobody is there to tell"


def test_passes_are_predicted_one_after_the_other() -> None:
    """Each by its own bucket; what is behind the last step is the last one's."""
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
