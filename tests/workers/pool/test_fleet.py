"""Workers that join, leave, and change their model while the queue keeps running."""

from __future__ import annotations

import asyncio

from models.parallel.axis_rules import Layout
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, toy_job
from tests.workers.polling import until
from tests.workers.running_worker import at_work
from tests.workers.toy import SPEC, ToyPipeline

OTHER = SPEC.model_copy(update={"name": "other", "fingerprint": "other"})


class OtherPipeline(ToyPipeline):
    spec = OTHER


def other_job(**fields: object) -> Job:
    return toy_job(**fields).model_copy(update={"model": OTHER.name})


async def served(queue: Queue) -> dict[str, tuple[int, bool]]:
    """Return each model's number of workers, and whether one is ready."""
    models = await queue.models()
    return {name: (len(status.pools), status.ready) for name, status in models.items()}


async def test_joining_worker_takes_waiting_jobs(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    long, waits = toy_job(phase="gated", num_inference_steps=50), toy_job()
    await queue.put(long)
    async with at_work(pipeline, layout, queue, store, slots=1):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.put(waits)
        async with at_work(ToyPipeline(), layout, queue, store, slots=2):
            waits = await ended(queue, waits)
            assert (waits.state, waits.attempts) == (JobState.SUCCEEDED, 1)
            assert (await served(queue))[SPEC.name] == (2, True)
        assert (await queue.get(long.id)).state == JobState.RUNNING
        assert (await served(queue))[SPEC.name] == (1, True)
        pipeline.gate.open()
        assert (await ended(queue, long)).state == JobState.SUCCEEDED


async def test_draining_worker_is_excluded_from_estimates(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """A draining worker finishes its job and claims no other.

    Wait estimates ignore its slots, and other workers leave no jobs to it.
    """
    runs = toy_job(phase="gated", num_inference_steps=50)
    await queue.put(runs)
    async with at_work(pipeline, layout, queue, store, drain_s=1000) as (worker, task):
        await asyncio.to_thread(pipeline.gate.wait)
        assert worker.name in (await queue.costs(SPEC.name)).pools
        worker.stop()

        async def is_told() -> bool:
            return (await served(queue))[SPEC.name] == (1, False)

        await until(is_told)
        assert (await queue.costs(SPEC.name)).pools == {}
        pipeline.gate.open()
        assert (await ended(queue, runs)).state == JobState.SUCCEEDED
        assert await task == 0
    assert (await served(queue))[SPEC.name] == (0, False)


async def test_worker_returns_with_another_model(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The worker keeps its name. Jobs for the old model keep waiting, and none is lost."""
    runs, waits, other = toy_job(phase="gated", num_inference_steps=50), toy_job(), other_job()
    await queue.put(runs)
    async with at_work(pipeline, layout, queue, store, slots=1, drain_s=0.1) as (worker, task):
        await asyncio.to_thread(pipeline.gate.wait)
        worker.stop()
        await task
    for job in (waits, other):
        await queue.put(job)
    async with at_work(OtherPipeline(), layout, queue, store, slots=1):
        assert (await ended(queue, other)).state == JobState.SUCCEEDED
        assert await served(queue) == {OTHER.name: (1, True), SPEC.name: (0, False)}
        depths = await queue.depths()
        counts = {name: (depth.queued, depth.running) for name, depth in depths.items()}
        assert counts == {OTHER.name: (0, 0), SPEC.name: (2, 0)}
    again = ToyPipeline()
    again.gate.open()
    async with at_work(again, layout, queue, store, slots=1):
        for job in (runs, waits):
            assert (await ended(queue, job)).state == JobState.SUCCEEDED


async def test_pools_of_two_models_at_one_queue(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    jobs = [kind(seed=seed) for seed in range(3) for kind in (toy_job, other_job)]
    for job in jobs:
        await queue.put(job)
    async with (
        at_work(pipeline, layout, queue, store, slots=1),
        at_work(OtherPipeline(), layout, queue, store, slots=2),
    ):
        ends = [await ended(queue, job) for job in jobs]
        assert {job.state for job in ends} == {JobState.SUCCEEDED}
        assert len({(job.model, job.pool) for job in ends}) == 2, "each by its own pool"
