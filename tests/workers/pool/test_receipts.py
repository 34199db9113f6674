"""Receipts: what a preset drew is drawn again exactly, and never in a job's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from models.interface.pipeline import Fields, Prepared
from models.parallel.axis_rules import Layout
from models.spec.quality_presets import GuidanceInterval, Quality
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.pools import PoolSettings
from tests.workers.at_work import LEASE_S, at_work, has
from tests.workers.jobs import ended, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.toy import SPEC, ToyPipeline
from workers.engine.engine import Engine
from workers.media.psnr import MOST_DB, psnr_db
from workers.pool import worker
from workers.pool.process import run_all
from workers.pool.receipts import Receipts, Served
from workers.pool.turns import AllPresent
from workers.pool.worker import Worker
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
    """Toy whose preset takes a phase and a guidance of its own."""

    def __init__(self, name: str = SPEC.name) -> None:
        super().__init__()
        self.spec = PRESET_SPEC.model_copy(update={"name": name})

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> Prepared:
        own = {"phase": "plain", "guidance_scale": 1.5} if fields.get("quality") == FAST else {}
        return super().prepare({**fields, **own}, images)


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool sees that it is idle when a claim has waited in vain."""
    monkeypatch.setattr(worker, "CLAIM_WAIT_S", 0.1)


@pytest.fixture
def pipeline() -> PresetToy:
    return PresetToy()


@pytest.fixture
async def engine(pipeline: PresetToy, layout: Layout) -> AsyncIterator[Engine]:
    engine = Engine(pipeline, layout, 4)
    yield engine
    engine.close()


def told(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"atelier_{name}", {"model": SPEC.name, **labels}) or 0


def measured() -> tuple[float, float]:
    """Return how many there are, and the sum of their PSNR."""
    return tuple(told(f"quality_psnr_db_{one}", preset=FAST) for one in ("count", "sum"))


def of_jobs() -> tuple[float, ...]:
    """Return the counts of what jobs alone are counted in."""
    stages = ("encode", "denoise", "decode")
    outcomes = (told("pool_jobs_total", outcome="succeeded"), told("claims_total"))
    return (*(told("job_stage_seconds_count", stage=one) for one in stages), *outcomes)


async def drawn(queue: Queue, **fields: Any) -> Job:
    job = toy_job(**fields)
    await queue.put(job)
    return await ended(queue, job)


async def test_the_psnr_between_what_was_served_and_the_exact_image_is_told(
    pipeline: PresetToy, layout: Layout, queue: Queue, store: Store
) -> None:
    """And nothing of that is a job's, and an exact image needs no receipt."""
    (count, total), jobs = measured(), of_jobs()
    async with at_work(pipeline, layout, queue, store, receipts=1) as (pool, _):
        fast = await drawn(queue, seed=3, quality=FAST)
        await until(lambda: measured()[0] > count)
        exact = await drawn(queue, seed=3, quality="exact")
        await until(lambda: not pool.jobs)
    (one,), (other,) = await pixels(store, fast), await pixels(store, exact)
    expected_db = psnr_db(one, other)
    assert 10 < expected_db < MOST_DB
    found, total_now = measured()
    assert (found - count, total_now - total) == (1, pytest.approx(expected_db, rel=1e-9))
    assert [now - before for now, before in zip(of_jobs(), jobs, strict=True)] == [2] * len(jobs)


async def test_a_job_is_served_amid_a_receipt_which_begins_anew_afterwards(
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


async def test_a_receipt_gives_way_to_a_job_of_another_model_on_its_devices(
    layout: Layout, queue: Queue, store: Store
) -> None:
    count, _ = measured()
    gated: dict[str, Any] = {"phase": "gated", "num_inference_steps": STEPS}
    toys, turns = [PresetToy(), PresetToy("other")], AllPresent()
    workers = []
    for toy in toys:
        toy.gate.open(TRIALS)
        pool = PoolSettings(model=toy.spec.name, receipts=1, preview_every_s=0)
        engine = Engine(toy, layout, 2)
        workers.append(Worker("toys", engine, queue, store, pool, LEASE_S, turns=turns))
        await turns.join(workers[-1])
    task = asyncio.create_task(run_all(workers, [[gated]] * 2, [[]] * 2, turns))
    try:
        await until(lambda: all(one.is_ready for one in workers))
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
        for one in workers:
            one.stop_now()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    finally:
        task.cancel()
        for toy, one in zip(toys, workers, strict=True):
            toy.gate.open()
            one.engine.close()


async def test_nothing_is_compiled_for_a_receipt(
    pipeline: PresetToy, layout: Layout, queue: Queue, store: Store
) -> None:
    def without() -> float:
        return told("receipts_total", outcome="not_compiled")

    count, before = measured()[0], without()
    async with at_work(pipeline, layout, queue, store, receipts=1) as (pool, _):
        await drawn(queue, phase="double", quality=FAST)
        await until(lambda: without() == before + 1)
        assert not await pool.engine.is_compiled({"phase": "double"}, {})
        assert await pool.engine.is_compiled({"phase": "plain"}, {})
    assert measured()[0] == count


async def test_the_sample_is_bounded_in_bytes(engine: Engine) -> None:
    """The oldest ones leave; what is larger than all of it is left out, and none leaves for it."""
    before = told("receipts_total", outcome="dropped")
    receipts = Receipts(engine, 1, max_bytes=3000)
    for size in (1000, 900, 1000, 800):
        receipts.offer(served(size))
    assert receipts.bytes == 2700
    receipts.offer(served(500, images={"image": bytes(600)}))
    assert receipts.bytes == 2900
    receipts.offer(served(3001))
    assert receipts.bytes == 2900
    assert told("receipts_total", outcome="dropped") - before == 3


async def test_nothing_is_kept_of_what_is_exact_or_not_to_be_compared(engine: Engine) -> None:
    every, none = Receipts(engine, 1), Receipts(engine, 0)
    for receipts, preset in ((every, "exact"), (none, FAST)):
        receipts.offer(served(10, preset))
        assert receipts.bytes == 0
    engine.pipeline.spec = engine.pipeline.spec.model_copy(update={"has_exact": False})
    without = Receipts(engine, 1)
    without.offer(served(10))
    assert without.bytes == 0


def served(size: int, preset: str = FAST, images: Mapping[str, bytes] | None = None) -> Served:
    return Served({"quality": preset}, images or {}, "", np.zeros(size, np.uint8))
