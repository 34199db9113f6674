"""Workers of different speed at one queue: which worker takes which job."""

from __future__ import annotations

import time
from typing import Any

from models.parallel.axis_rules import Layout
from service.jobs.model.job import Job
from service.jobs.queue import Queue
from service.jobs.scheduling.cost_model import CostKey, CostRow, PoolFacts
from service.jobs.storage.object_store import Store
from tests.service.jobs.conftest import Connect, connect
from tests.workers.jobs import ended, toy_job
from tests.workers.running_worker import at_work
from tests.workers.toy import SPEC, ToyPipeline

__all__ = ["connect"]

WARM_UP = dict(SPEC.defaults)
BUCKET = SPEC.bucket(WARM_UP)


async def a_faster_pool(queue: Queue, step_s: float) -> None:
    """Register another ready worker of the model, with these step times."""
    facts = PoolFacts("faster", slots=1)
    await queue.register("fast", SPEC, ready=True, facts=facts)
    row = CostRow(step_s=step_s, encode_s=0, decode_s=0)
    await queue.measured(SPEC.name, {CostKey(BUCKET, "faster", 1): row})


def tight_job(run_s: float, **fields: Any) -> Job:
    """Return a job that takes `run_s` on the fastest worker, and has twice that time."""
    times = {"run_s": run_s, "deadline_at": time.time() + 2 * run_s}
    return toy_job(**fields).model_copy(update=times)


async def test_a_slow_pool_leaves_a_tight_deadline_to_a_faster_one(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """Both workers' times are measured: the other worker's steps are a billion times as fast."""
    await a_faster_pool(queue, step_s=1e-12)
    tight, easy = tight_job(run_s=600), toy_job(seed=1)
    for job in (tight, easy):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, warmup=WARM_UP):
        assert (await ended(queue, easy)).state == "succeeded"
        await a_faster_pool(queue, step_s=1e-12)  # its heartbeat
        assert (await queue.get(tight.id)).state == "queued"
        (claim,) = await queue.claim("fast", SPEC.name, 1)
        assert claim.job.id == tight.id


async def test_slow_worker_takes_the_job_after_the_faster_one_left(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    await a_faster_pool(queue, step_s=1e-12)
    tight, easy = tight_job(run_s=600), toy_job(seed=1)
    for job in (tight, easy):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, warmup=WARM_UP):
        assert (await ended(queue, easy)).state == "succeeded"
        assert (await queue.get(tight.id)).state == "queued"
        await queue.unregister("fast", SPEC.name)
        assert (await ended(queue, tight)).state == "succeeded"


async def test_fastest_worker_takes_the_job(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    await a_faster_pool(queue, step_s=1e6)  # by name only
    tight = tight_job(run_s=600)
    await queue.put(tight)
    async with at_work(pipeline, layout, queue, store, warmup=WARM_UP):
        assert (await ended(queue, tight)).state == "succeeded"


async def test_jobs_of_compiled_shapes_run_first(
    pipeline: ToyPipeline, layout: Layout, connect: Connect, store: Store
) -> None:
    queue = await connect(affinity_s=1000)
    cold, warm = toy_job(width=64), toy_job()
    for job in (cold, warm):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, warmup=WARM_UP, slots=1):
        first, second = await ended(queue, warm), await ended(queue, cold)
    assert first.started_at < second.started_at
