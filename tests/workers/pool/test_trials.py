"""Trials of warm-up requests, and work that a worker's readiness does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from models.interface.pipeline import Fields, PreparedRow
from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.redis.keys import PREFIX
from service.jobs.scheduling.cost_model import CostKey, CostRow
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.engine.latency_stats import describe
from workers.pool.cost_reporting import MAX_AGE_S, CostReporter
from workers.pool.idle_work import IdleWork
from workers.pool.trials import NO_NUMBERS, SHORT_TRIAL_S, Trials
from workers.programs.batch_sizes import fast
from workers.programs.step_latency import TRIALS

SMALL: dict[str, Any] = {"width": 32, "height": 16}
BUCKET = SPEC.bucket(SMALL)
SHORT = (0.0,)


@pytest.fixture
async def engine(pipeline: ToyPipeline, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 4, fast(4))
    yield engine
    engine.close()


async def measure_alone(engine: Engine, *requests: Fields) -> str | None:
    return await Trials(engine, requests, SHORT * len(requests)).run_alone()


async def test_every_size_is_measured(engine: Engine, layout: Layout) -> None:
    request = {**SMALL, "phase": "plain", "second_phase": "double", "num_inference_steps": 20}
    await engine.readiness.warm_up([request])
    trials = Trials(engine, [request], SHORT)
    await trials.run_alone()
    assert {key.batch for key in engine.costs.rows("here", 1)} == {1}
    await trials.run_batches()
    rows = engine.costs.rows(describe("toy", engine.place, engine.batching), 1)
    assert {key.batch for key in rows} == {1, 2, 4}
    assert {(key.bucket, key.layout) for key in rows} == {(BUCKET, "toy on cpu")}
    assert all(min(row.step_s, row.encode_s, row.decode_s) > 0 for row in rows.values())
    assert engine.costs.warm == [BUCKET]


async def test_batches_measured_by_other_workers_are_skipped(
    engine: Engine, queue: Queue, empty_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image is made even so, which shows that the model works."""
    monkeypatch.setattr("workers.pool.trials.BATCHES_S", DEADLINE_S)
    request = {**SMALL, "num_inference_steps": 20}
    await engine.readiness.warm_up([request])
    trials = Trials(engine, [request], SHORT)
    await trials.run_alone()
    cost_reporter = CostReporter(engine, queue, "toy")
    layout = cost_reporter.facts.layout
    assert await cost_reporter.recent_measurements() == set()
    row = CostRow(step_s=1.0, encode_s=0.5, decode_s=2.0)
    costs = {CostKey(BUCKET, name, size): row for name in (layout, "x") for size in (1, 2, 4)}
    await queue.measured(SPEC.name, costs)
    measured = await cost_reporter.recent_measurements()
    assert measured == {(BUCKET, 1), (BUCKET, 2), (BUCKET, 4)}
    await trials.run_batches(measured)
    assert {key.batch for key in engine.costs.rows(layout, 1)} == {1}
    await trials.run_batches([(BUCKET, 1), (BUCKET, 2)])
    assert {key.batch for key in engine.costs.rows(layout, 1)} == {1, 2, 4}
    at = (await queue.costs(SPEC.name)).at - MAX_AGE_S - 1
    for key in costs:
        old = row.model_copy(update={"at": at}).model_dump_json()
        await empty_redis.hset(f"{PREFIX}costs:{SPEC.name}", key.wire(), old)
    assert await cost_reporter.recent_measurements() == set(), "that is too long ago"


async def test_failed_request_does_not_stop_measuring(engine: Engine) -> None:
    await measure_alone(engine, {**SMALL, "nan_at": 1}, SMALL)
    assert engine.costs.rows("here", 1)


async def test_broken_model_is_detected_by_its_warm_up(engine: Engine) -> None:
    assert await measure_alone(engine, {**SMALL, "nan_at": 1}, {**SMALL, "nan_at": 0}) == NO_NUMBERS
    assert await measure_alone(engine, {**SMALL, "nan_at": 1}, SMALL) is None
    assert await measure_alone(engine) is None
    some = Trials(engine, [{**SMALL, "nan_at": 1}, SMALL], [0.0, 2 * SHORT_TRIAL_S])
    assert await some.run_alone() is None, "of one of them nothing is known"


async def test_failure_of_one_seed_or_batch_is_no_broken_model(
    layout: Layout,
) -> None:
    """A worker with one warm-up request, the default, would never be ready."""
    engine = Engine(UnluckyPipeline(), layout, 4, fast(4))
    try:
        assert await measure_alone(engine, {**SMALL, "seed": 0}) is None
        later = {**SMALL, "seed": 1, "nan_at": TRIALS, "num_inference_steps": 9}
        trials = Trials(engine, [later], SHORT)
        assert await trials.run_alone() is None
        await trials.run_batches()
        assert await measure_alone(engine, {**SMALL, "seed": 1, "nan_at": 0}) == NO_NUMBERS
    finally:
        engine.close()


class UnluckyPipeline(ToyPipeline):
    """Toy pipeline whose seed 0 gives non-finite numbers."""

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        unlucky = {} if fields["seed"] else {"nan_at": 0}
        return super().prepare({**fields, **unlucky}, images)


async def test_long_trial_is_measured_on_its_first_job(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """No step of the trial begins before the first job, which would have to wait for it."""
    long = {"phase": "gated"}
    expected_s = [2 * SHORT_TRIAL_S]
    async with at_work(pipeline, layout, queue, store, warmup=long, expected_s=expected_s) as (
        worker,
        _,
    ):
        await until(lambda: has(queue, (1, True)))
        assert pipeline.gate.count == 0 and not worker.engine.costs.rows("here", 1)
        pipeline.gate.open()
        job = toy_job(**long)
        await queue.put(job)
        assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert worker.engine.costs.rows("here", 1)


async def test_readiness_does_not_wait_for_a_trial_whose_estimate_is_wrong(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Trials, "timeout_s", 0.1)
    async with at_work(pipeline, layout, queue, store, warmup={"phase": "gated"}):
        await until(lambda: has(queue, (1, True)))
        pipeline.gate.open()
        job = toy_job(phase="gated")
        await queue.put(job)
        assert (await ended(queue, job)).state is JobState.SUCCEEDED


async def test_a_pool_serves_while_larger_batches_compile(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """A job of another shape is served as well; its own programs are compiled first."""
    slow = {"phase": "slow-together"}
    async with at_work(pipeline, layout, queue, store, warmup=slow, batching=fast(4)) as (
        worker,
        _,
    ):
        await until(lambda: has(queue, (1, True)))
        await until(pipeline.waits_to_compile.is_set)
        jobs = [toy_job(**slow), toy_job(width=64)]
        for job in jobs:
            await queue.put(job)
        for job in jobs:
            assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert not pipeline.compile_gate.is_set()
        pipeline.compile_gate.set()
        await until(lambda: {key.batch for key in worker.engine.costs.rows("here", 1)} >= {1, 4})


async def test_trials_yield_to_a_job(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """Rows of trials would delay the job: canceled rows leave with the next step."""
    pipeline.gate.open(TRIALS)  # steps of the trial of a single row
    warmup = {"phase": "gated", "num_inference_steps": 40}
    async with at_work(pipeline, layout, queue, store, warmup=warmup, batching=fast(4)) as (
        worker,
        _,
    ):
        await until(lambda: has(queue, (1, True)))
        await until(lambda: pipeline.gate.count > TRIALS)
        job = toy_job()
        await queue.put(job)
        await reached(queue, job, JobState.RUNNING)
        pipeline.gate.open(worker.engine.slots)
        assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert pipeline.gate.count <= TRIALS + 2 * worker.engine.slots


async def test_idle_work_is_canceled_restarted_and_done_once() -> None:
    begun, done, may_end = 0, 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun, done
        begun += 1
        await may_end.wait()
        done += 1

    idle = IdleWork(work)
    await idle.interrupt()
    for time in (1, 2):
        idle.begin()
        idle.begin()
        await until(lambda: begun == time)  # noqa: B023 - it is awaited here
        await idle.interrupt()
    assert (begun, done) == (2, 0)
    may_end.set()
    for _ in range(2):
        idle.begin()
        await until(lambda: done == 1)
        await idle.interrupt()
    assert (begun, done) == (3, 1)


async def test_failed_idle_work_is_logged_and_not_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise ValueError("broken")

    idle = IdleWork(work)
    for _ in range(2):
        idle.begin()
        await until(lambda: "broken" in caplog.text)
        await idle.interrupt()
    assert tries == 1
