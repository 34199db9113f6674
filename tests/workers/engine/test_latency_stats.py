"""Step costs that a worker measures, by the queue's buckets."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from models.spec.controls import ControlKind
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.scheduling.cost_model import CostKey, CostRow
from tests.workers.polling import until
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.engine.latency_stats import MAX_BUCKETS, LatencyStats
from workers.pool.cost_reporting import CONFIRM_S, REPORT_EVERY_S, CostReporter
from workers.programs.batch_sizes import fast
from workers.programs.bucket_programs import BucketPrograms, StepKind
from workers.programs.step_latency import TRIALS, BatchLayout

SMALL: dict[str, Any] = {"width": 32, "height": 16}
BUCKET = SPEC.bucket(SMALL)


def programs_of(name: str = "shape", **phases: dict[BatchLayout, float]) -> BucketPrograms:
    """Return programs that took 0.5 s to encode and 2 s to decode, with step times by phase."""
    programs = BucketPrograms(name)
    programs.encode_times.observe(0.5)
    programs.decode_times.observe(2.0)
    for phase, batch_layouts in phases.items():
        phase = StepProgram.parse(phase)
        programs.step_kinds[phase] = StepKind(phase)
        for batch_layout, seconds in batch_layouts.items():
            for _ in range(TRIALS):
                programs.step_kinds[phase].times.observe(batch_layout, seconds)
    return programs


def steps_of(costs: LatencyStats) -> dict[int, float]:
    return {key.batch: row.step_s for key, row in costs.rows("here", 1).items()}


def test_statistics_have_one_row_per_batch_size() -> None:
    costs = LatencyStats(SPEC)
    costs.uses(
        SMALL, programs_of(plain={BatchLayout(1): 1.0, BatchLayout(4): 3.0, BatchLayout(4, 4): 2.0})
    )
    rows = costs.rows("here", 8)
    assert rows.keys() == {CostKey(BUCKET, "here", 1), CostKey(BUCKET, "here", 4)}
    four = rows[CostKey(BUCKET, "here", 4)]
    assert (four.step_s, four.encode_s, four.decode_s) == (2.0, 0.5, 2.0), "the layout that is used"
    assert (four.devices, four.samples) == (8, 3 * TRIALS)


def test_cached_steps_count_by_their_frequency() -> None:
    """A median would represent only one kind of step."""
    costs, programs = (
        LatencyStats(SPEC),
        programs_of(**{"plain first-block": {BatchLayout(1): 4.0}}),
    )
    for _ in range(2 * TRIALS):
        programs.step_kinds[StepProgram.parse("plain first-block")].times.observe(
            BatchLayout(1), 1.0
        )
    costs.uses(SMALL, programs)
    assert steps_of(costs) == {1: 2.0}


def test_phases_and_shapes_count_by_their_steps() -> None:
    """One expert runs twice as many steps as the other.

    Requests with and without guidance share a bucket of the queue.
    """
    costs = LatencyStats(SPEC)
    programs = programs_of(high={BatchLayout(1): 4.0}, low={BatchLayout(1): 1.0})
    for _ in range(TRIALS):
        programs.step_kinds[StepProgram("low")].times.observe(BatchLayout(1), 1.0)
    costs.uses(SMALL, programs)
    assert steps_of(costs)[1] == pytest.approx(2.0)
    costs.uses(SMALL, programs_of("guided", plain={BatchLayout(1): 8.0}))
    assert steps_of(costs)[1] == pytest.approx((2.0 * 3 + 8.0) / 4)


def test_disturbed_steps_do_not_count() -> None:
    programs = programs_of(plain={BatchLayout(1): 1.0})
    for seconds in (1.0, 9.0, 1.0, 7.0, 1.0, 30.0):
        programs.step_kinds[StepProgram("plain")].times.observe(BatchLayout(1), seconds)
    costs = LatencyStats(SPEC)
    costs.uses(SMALL, programs)
    assert steps_of(costs) == {1: 1.0}


def test_bucket_with_controls_includes_their_work() -> None:
    """Times are those of a plain step: both buckets have the same programs, and controls add their
    work."""
    spec = SPEC.model_copy(update={"controls": {"canny": ControlKind(work=0.5)}})
    costs, programs = LatencyStats(spec), programs_of(plain={BatchLayout(1): 2.0})
    controlled = {**SMALL, "control": [{"name": "canny", "image": "a key", "end": 0.5}]}
    costs.uses(SMALL, programs)
    costs.uses(controlled, programs)
    step_seconds = {key.bucket: row.step_s for key, row in costs.rows("here", 1).items()}
    assert step_seconds == {spec.bucket(SMALL): 2.0, spec.bucket(controlled): 2.0 * 1.25}


def test_unmeasured_bucket_has_no_row() -> None:
    costs = LatencyStats(SPEC)
    costs.uses(SMALL, BucketPrograms("compiling"))
    costs.uses({"width": 64, "height": 16}, programs_of(plain={}))
    costs.uses({"prompt": "no size"}, programs_of(plain={BatchLayout(1): 1.0}))
    assert costs.rows("here", 1) == {}
    assert costs.warm == []


def test_least_recently_used_bucket_is_evicted() -> None:
    costs = LatencyStats(SPEC)
    for width in range(MAX_BUCKETS + 1):
        costs.uses(SMALL | {"width": width}, programs_of(plain={BatchLayout(1): 1.0}))
        costs.uses(SMALL, programs_of(plain={BatchLayout(1): 1.0}))
    buckets = {key.bucket for key in costs.rows("here", 1)}
    assert len(buckets) == MAX_BUCKETS
    assert BUCKET in buckets and SPEC.bucket(SMALL | {"width": 0}) not in buckets


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 4, fast(4))
    yield engine
    engine.close()


async def test_warm_buckets_are_the_compiled_ones(engine: Engine, pipeline: ToyPipeline) -> None:
    wide = SMALL | {"width": 64}
    for fields in (SMALL, wide, SMALL):
        await engine.generate(fields, {})
    expected = [BUCKET, SPEC.bucket(wide)]
    await until(lambda: engine.costs.warm == expected)  # previews compile last


async def test_only_changed_costs_are_reported(engine: Engine, queue: Queue) -> None:
    cost_reporter = CostReporter(engine, queue, "toy")
    key = CostKey(BUCKET, cost_reporter.facts.layout, 1)
    programs = programs_of(plain={BatchLayout(1): 1.0})
    engine.costs.uses(SMALL, programs)
    await cost_reporter.report()
    reported = (await queue.costs(SPEC.name)).rows
    assert reported[key].step_s == 1.0
    await cost_reporter.report()
    assert (await queue.costs(SPEC.name)).rows == reported, "it was written again"
    for _ in range(20):
        programs.step_kinds[StepProgram("plain")].times.observe(BatchLayout(1), 2.0)
    await cost_reporter.report()
    assert (await queue.costs(SPEC.name)).rows[key].step_s == 2.0


async def test_estimates_are_reported_until_measured(engine: Engine, queue: Queue) -> None:
    cost_reporter = CostReporter(engine, queue, "toy")
    key = CostKey(BUCKET, cost_reporter.facts.layout, 1)
    cost_reporter.estimated = {BUCKET: CostRow(step_s=9.0, encode_s=0, decode_s=0, samples=0)}
    await cost_reporter.report()
    reported = (await queue.costs(SPEC.name)).rows[key]
    assert (reported.step_s, reported.samples) == (9.0, 0)
    assert not await cost_reporter.recent_measurements()
    engine.costs.uses(SMALL, programs_of(plain={BatchLayout(1): 9.0}))
    await cost_reporter.report()
    assert (await queue.costs(SPEC.name)).rows[key].samples > 0
    starting = CostReporter(engine, queue, "toy")
    starting.estimated = {BUCKET: CostRow(step_s=5.0, encode_s=0, decode_s=0, samples=0)}
    await starting.report()
    assert (await queue.costs(SPEC.name)).rows[key].step_s == 9.0, "measurements remain"


async def test_confirmed_costs_are_reported_periodically(
    engine: Engine, queue: Queue, empty_redis: Any
) -> None:
    """A repeated report confirms the costs to the front end."""
    cost_reporter = CostReporter(engine, queue, "toy")
    key = CostKey(BUCKET, cost_reporter.facts.layout, 1)
    programs = programs_of(plain={BatchLayout(1): 1.0})
    engine.costs.uses(SMALL, programs)

    async def reported_at() -> float:
        await cost_reporter.report()
        return (await queue.costs(SPEC.name)).rows[key].at

    first = await reported_at()
    programs.step_kinds[StepProgram("plain")].times.observe(BatchLayout(1), 1.0)
    assert await reported_at() == first, "that is not so long ago"
    reported = (await queue.costs(SPEC.name)).rows[key]
    old = reported.model_copy(update={"at": first - CONFIRM_S})
    await empty_redis.hset(f"{PREFIX}costs:{SPEC.name}", key.wire(), old.model_dump_json())
    assert await reported_at() > first
    await empty_redis.hset(f"{PREFIX}costs:{SPEC.name}", key.wire(), old.model_dump_json())
    assert await reported_at() == old.at, "nothing was measured meanwhile"


async def test_lost_cost_table_is_reported_again(
    engine: Engine, queue: Queue, empty_redis: Any
) -> None:
    cost_reporter = CostReporter(engine, queue, "toy")
    engine.costs.uses(SMALL, programs_of(plain={BatchLayout(1): 1.0}))
    await cost_reporter.report()
    await empty_redis.flushall()
    await cost_reporter.report()
    assert (await queue.costs(SPEC.name)).rows


async def test_slowness_updates_if_another_pool_is_faster(engine: Engine, queue: Queue) -> None:
    cost_reporter = CostReporter(engine, queue, "toy")
    engine.costs.uses(SMALL, programs_of(plain={BatchLayout(1): 3.0}))
    fast = dataclasses.replace(cost_reporter.facts, layout="faster")
    await queue.register("other", SPEC, ready=True, facts=fast)
    await cost_reporter.report()
    assert cost_reporter.slowness == 1.0
    row = (await queue.costs(SPEC.name)).rows[CostKey(BUCKET, cost_reporter.facts.layout, 1)]
    faster = row.model_copy(update={"step_s": 1.0})
    await queue.measured(SPEC.name, {CostKey(BUCKET, "faster", 1): faster})
    await cost_reporter.report()
    assert (cost_reporter.slowness, cost_reporter.slowness_in) == (3.0, {BUCKET: 3.0})


async def test_report_interval_grows_with_the_number_of_workers(
    engine: Engine, queue: Queue
) -> None:
    cost_reporter = CostReporter(engine, queue, "toy")
    await cost_reporter.report()
    assert cost_reporter.pause_s == REPORT_EVERY_S
    for number in range(200):
        await queue.register(f"pool-{number}", SPEC, ready=True, facts=cost_reporter.facts)
    await cost_reporter.report()
    assert cost_reporter.pause_s == 2 * REPORT_EVERY_S
