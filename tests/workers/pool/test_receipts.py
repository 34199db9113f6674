"""Quality samples (`receipts`): images of presets are generated again exactly, and never delay a
job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from models.interface.pipeline import Fields, PreparedRow
from models.parallel.axis_rules import Layout
from models.spec.quality_presets import GuidanceInterval, Quality
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from tests.workers.jobs import ended, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import LEASE_S, at_work, has
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.media.psnr import MAX_DB, psnr_db
from workers.pool import worker
from workers.pool.process import run_all
from workers.pool.quality_samples import QualitySamples, ServedOutput
from workers.pool.time_sharing import ResidentModels
from workers.pool.worker import Worker, WorkerOptions, WorkerParts
from workers.programs.step_latency import TRIALS

FAST = "fast"
STEPS = 40


PRESET_SPEC = SPEC.model_copy(
    update={
        "fields": SPEC.fields | {"quality"},
        "defaults": {**SPEC.defaults, "quality": "exact"},
        "qualities": {FAST: Quality(guidance=GuidanceInterval(stop=0.5))},
    }
)


class PresetToy(ToyPipeline):
    """Toy pipeline whose preset has its own phase and guidance."""

    def __init__(self, name: str = SPEC.name) -> None:
        super().__init__()
        self.spec = PRESET_SPEC.model_copy(update={"name": name})

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        changes = {"phase": "plain", "guidance_scale": 1.5} if fields.get("quality") == FAST else {}
        return super().prepare({**fields, **changes}, images)


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the claim's wait, after which a worker is idle."""
    monkeypatch.setattr(worker, "CLAIM_WAIT_S", 0.1)


@pytest.fixture
def pipeline() -> PresetToy:
    return PresetToy()


@pytest.fixture
async def engine(pipeline: PresetToy, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 4)
    yield engine
    engine.close()


def metric_value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"atelier_{name}", {"model": SPEC.name, **labels}) or 0


def measured() -> tuple[float, float]:
    """Return the number of measured samples, and the sum of their PSNR."""
    return tuple(metric_value(f"quality_psnr_db_{part}", preset=FAST) for part in ("count", "sum"))


def of_jobs() -> tuple[float, ...]:
    """Return the counters that only jobs increase."""
    stages = ("encode", "denoise", "decode")
    outcomes = (metric_value("pool_jobs_total", outcome="succeeded"), metric_value("claims_total"))
    return (*(metric_value("job_stage_seconds_count", stage=stage) for stage in stages), *outcomes)


async def drawn(queue: Queue, **fields: Any) -> Job:
    job = toy_job(**fields)
    await queue.put(job)
    return await ended(queue, job)


async def test_psnr_to_the_exact_image_is_exported(
    pipeline: PresetToy, layout: Layout, queue: Queue, store: Store
) -> None:
    """A quality sample increases no counter of jobs, and an exact image needs no sample."""
    (count, total), jobs = measured(), of_jobs()
    async with at_work(pipeline, layout, queue, store, receipts=1) as (worker, _):
        fast = await drawn(queue, seed=3, quality=FAST)
        await until(lambda: measured()[0] > count)
        exact = await drawn(queue, seed=3, quality="exact")
        await until(lambda: not worker.jobs)
    (served_image,), (exact_image,) = await pixels(store, fast), await pixels(store, exact)
    expected_db = psnr_db(served_image, exact_image)
    assert 10 < expected_db < MAX_DB
    count_now, total_now = measured()
    assert (count_now - count, total_now - total) == (1, pytest.approx(expected_db, rel=1e-9))
    assert [now - before for now, before in zip(of_jobs(), jobs, strict=True)] == [2] * len(jobs)


async def test_job_interrupts_a_receipt_which_restarts(
    pipeline: PresetToy, layout: Layout, queue: Queue, store: Store
) -> None:
    count, _ = measured()
    pipeline.gate.open(TRIALS)
    gated: dict[str, Any] = {"phase": "gated", "num_inference_steps": STEPS}
    async with at_work(pipeline, layout, queue, store, warmup=gated, receipts=1):
        await until(lambda: has(queue, (1, True)))
        await drawn(queue, **gated, quality=FAST)
        await until(lambda: pipeline.gate.count > TRIALS)
        job = toy_job()
        await queue.put(job)
        await reached(queue, job, JobState.RUNNING)
        pipeline.gate.open(2)  # those that were sent to the device
        assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert pipeline.gate.count <= TRIALS + 3, "the first of another try may have come"
        assert measured()[0] == count
        pipeline.gate.open()
        await until(lambda: measured()[0] == count + 1)
        assert pipeline.gate.count >= TRIALS + 1 + STEPS


async def test_receipt_yields_to_a_job_of_another_model(
    layout: Layout, queue: Queue, store: Store
) -> None:
    count, _ = measured()
    gated: dict[str, Any] = {"phase": "gated", "num_inference_steps": STEPS}
    toys, time_sharing = [PresetToy(), PresetToy("other")], ResidentModels()
    workers = []
    for toy in toys:
        toy.gate.open(TRIALS)
        pool = PoolSettings(model=toy.spec.name, receipts=1, preview_every_s=0)
        engine = Engine(toy, layout, 2)
        workers.append(
            Worker(
                "toys",
                WorkerParts(engine, queue, store),
                pool,
                LEASE_S,
                WorkerOptions(time_sharing=time_sharing),
            )
        )
        await time_sharing.join(workers[-1])
    task = asyncio.create_task(run_all(workers, [[gated]] * 2, [[]] * 2, time_sharing))
    try:
        await until(lambda: all(member.is_ready for member in workers))
        await drawn(queue, **gated, quality=FAST)
        await until(lambda: toys[0].gate.count > TRIALS)
        job = toy_job(**gated).model_copy(update={"model": "other"})
        await queue.put(job)
        await until(lambda: toys[1].gate.count > TRIALS)
        toys[0].gate.open(2)  # those that were sent to the device
        await until(lambda: not workers[0].engine.step_loop.load)
        toys[1].gate.open()
        assert (await ended(queue, job)).state is JobState.SUCCEEDED
        assert toys[0].gate.count <= TRIALS + 3, "the first of another try may have come"
        assert measured()[0] == count
        toys[0].gate.open()
        await until(lambda: measured()[0] == count + 1)
        for member in workers:
            member.stop_now()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    finally:
        task.cancel()
        for toy, member in zip(toys, workers, strict=True):
            toy.gate.open()
            member.engine.close()


async def test_receipts_compile_nothing(
    pipeline: PresetToy, layout: Layout, queue: Queue, store: Store
) -> None:
    def without() -> float:
        return metric_value("receipts_total", outcome="not_compiled")

    count, before = measured()[0], without()
    async with at_work(pipeline, layout, queue, store, receipts=1) as (worker, _):
        await drawn(queue, phase="double", quality=FAST)
        await until(lambda: without() == before + 1)
        assert not await worker.engine.readiness.is_compiled({"phase": "double"}, {})
        assert await worker.engine.readiness.is_compiled({"phase": "plain"}, {})
    assert measured()[0] == count


async def test_the_sample_is_bounded_in_bytes(engine: Engine) -> None:
    """The oldest quality samples are dropped.

    An image larger than the limit is skipped, and none is dropped for it.
    """
    before = metric_value("receipts_total", outcome="dropped")
    receipts = QualitySamples(engine, 1, max_bytes=3000)
    for size in (1000, 900, 1000, 800):
        receipts.offer(served(size))
    assert receipts.bytes == 2700
    receipts.offer(served(500, images={"image": bytes(600)}))
    assert receipts.bytes == 2900
    receipts.offer(served(3001))
    assert receipts.bytes == 2900
    assert metric_value("receipts_total", outcome="dropped") - before == 3


async def test_exact_and_incomparable_outputs_are_not_sampled(engine: Engine) -> None:
    every, none = QualitySamples(engine, 1), QualitySamples(engine, 0)
    for receipts, preset in ((every, "exact"), (none, FAST)):
        receipts.offer(served(10, preset))
        assert receipts.bytes == 0
    engine.pipeline.spec = engine.pipeline.spec.model_copy(update={"has_exact": False})
    inexact = QualitySamples(engine, 1)
    inexact.offer(served(10))
    assert inexact.bytes == 0


def served(
    size: int, preset: str = FAST, images: Mapping[str, bytes] | None = None
) -> ServedOutput:
    return ServedOutput({"quality": preset}, images or {}, "", np.zeros(size, np.uint8))
