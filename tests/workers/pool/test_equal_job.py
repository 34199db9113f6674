"""Equal jobs at the same time: generated once if possible, each with its own files."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import REGISTRY

from models.parallel.axis_rules import Layout
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has_step
from tests.workers.toy import ToyPipeline
from workers.pool import equal_job
from workers.retry import Patience

STEPS = 6
DAY_S = 86400


def gated(**fields: Any) -> Job:
    return toy_job(phase="gated", num_inference_steps=STEPS, num_images=2, seed=5, **fields)


async def half_way(queue: Queue, pipeline: ToyPipeline, **fields: Any) -> Job:
    """Return a job that has done a few steps and waits at the gate."""
    job = gated(**fields)
    await queue.put(job)
    pipeline.gate.open(4)
    await until(lambda: has_step(queue, job.id, 2))
    return job


def equal_to(job: Job) -> Job:
    """Return the same request again, as a front end submits it."""
    return gated().model_copy(update={"awaits": job.id})


async def waiting_for(queue: Queue, job: Job) -> Job:
    """Return an equal job that a worker has claimed."""
    again = equal_to(job)
    await queue.put(again)
    return await reached(queue, again, JobState.RUNNING)


def saved_s() -> float:
    name = "atelier_reused_device_seconds_total"
    return REGISTRY.get_sample_value(name, {"model": "toy"}) or 0.0


async def files_of(store: Store, job: Job) -> list[bytes]:
    return [await store.get(output.key) for output in job.outputs]


async def test_equal_job_is_generated_once(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    before_s = saved_s()
    async with at_work(pipeline, layout, queue, store):
        first = await half_way(queue, pipeline)
        again = [await waiting_for(queue, first) for _ in range(2)]
        pipeline.gate.open()
        original, *copied = [await ended(queue, job) for job in (first, *again)]
    assert pipeline.gate.count == 2 * STEPS == original.usage.steps
    assert original.copied_from is None
    for job in copied:
        assert (job.state, job.copied_from) == (JobState.SUCCEEDED, first.id)
        assert (job.usage.steps, job.usage.device_seconds) == (0, 0)
        assert await files_of(store, job) == await files_of(store, original)
        assert not {output.key for output in job.outputs} & {
            output.key for output in original.outputs
        }
        assert [output.seed for output in job.outputs] == [5, 6]
    assert saved_s() - before_s == pytest.approx(2 * original.usage.device_seconds)


@pytest.mark.parametrize(
    "limits", [{"run_s": DEADLINE_S}, {}], ids=["no longer than it takes", "unknown time"]
)
async def test_other_worker_waits_for_an_equal_job_within_limits(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, limits: dict[str, float]
) -> None:
    """The first worker may be slow, or compile first."""
    other = ToyPipeline()
    other.gate.open()
    async with AsyncExitStack() as pools:
        await pools.enter_async_context(at_work(pipeline, layout, queue, store, slots=1))
        first = await half_way(queue, pipeline)
        await pools.enter_async_context(
            at_work(
                other,
                layout,
                queue,
                store,
            )
        )
        again = equal_to(first).model_copy(update=limits)
        await queue.put(again)
        if waits := bool(limits):
            await reached(queue, again, JobState.RUNNING)
            pipeline.gate.open()
        job = await ended(queue, again)
        assert job.copied_from == (first.id if waits else None)
        assert other.gate.count == job.usage.steps == (0 if waits else 2 * STEPS)
        if not waits:
            assert (await queue.get(first.id)).state is JobState.RUNNING


def test_wait_ends_early_enough_for_the_deadline() -> None:
    def wait_s(left_s: float) -> float:
        limits = {"run_s": DAY_S, "deadline_at": time.time() + left_s}
        return equal_job.patience_s(toy_job().model_copy(update=limits))

    assert 0 < wait_s(1.5 * DAY_S) <= 0.5 * DAY_S
    assert (wait_s(3 * DAY_S), wait_s(0.5 * DAY_S)) == (DAY_S, 0)


@pytest.mark.parametrize("output", [{"format": "webp", "quality": 60}, {"format": "jpeg"}])
async def test_images_in_another_format_are_encoded_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, output: dict[str, Any]
) -> None:
    """The files equal those of a request that generates its images."""
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store):
        first = gated()
        await queue.put(first)
        await ended(queue, first)
        alone, again = gated(output=output), gated(output=output)
        again = again.model_copy(update={"encodes": first.id})
        for job in (alone, again):
            await queue.put(job)
        alone, again = await ended(queue, alone), await ended(queue, again)
        assert (again.copied_from, again.usage.steps) == (first.id, 0)
        assert await files_of(store, again) == await files_of(store, alone)
        names = {"key"}
        for encoded, generated in zip(again.outputs, alone.outputs, strict=True):
            assert encoded.model_dump(exclude=names) == generated.model_dump(exclude=names)
    assert pipeline.gate.count == 2 * 2 * STEPS


async def test_waiting_job_frees_its_slots(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store):
        first = await half_way(queue, pipeline)
        waiting = [await waiting_for(queue, first) for _ in range(3)]
        neighbours = [toy_job(), toy_job()]
        for job in neighbours:
            await queue.put(job)
            await reached(queue, job, JobState.RUNNING)
        assert (await queue.get(first.id)).state is JobState.RUNNING
        pipeline.gate.open()
        for job in waiting:
            assert (await ended(queue, job)).copied_from == first.id


async def test_equal_job_is_generated_if_the_first_is_canceled(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    async with at_work(pipeline, layout, queue, store):
        first = await half_way(queue, pipeline)
        again = await waiting_for(queue, first)
        await queue.cancel(first.id)
        pipeline.gate.open()
        job = await ended(queue, again)
    assert (job.state, job.copied_from, job.usage.steps) == (JobState.SUCCEEDED, None, 2 * STEPS)


async def test_both_jobs_are_released_and_resume_elsewhere(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The equal job waits again as soon as the first job runs again."""
    async with at_work(pipeline, layout, queue, store, drain_s=2) as (worker, task):
        first = await half_way(queue, pipeline)
        again = await waiting_for(queue, first)
        pipeline.gate.open(2)
        worker.stop()
        await asyncio.wait_for(task, 60)
    for job in (first, again):
        assert (await queue.get(job.id)).state is JobState.QUEUED
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        assert (await ended(queue, first)).state is JobState.SUCCEEDED
        assert (await ended(queue, again)).copied_from == first.id


async def test_equal_job_is_generated_if_the_files_are_missing(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    pipeline.gate.open()
    async with at_work(pipeline, layout, queue, store):
        first = gated()
        await queue.put(first)
        first = await ended(queue, first)
        await store.delete([first.outputs[1].key])
        again = equal_to(first)
        await queue.put(again)
        job = await ended(queue, again)
        assert (job.state, job.copied_from) == (JobState.SUCCEEDED, None)
        assert len(await files_of(store, job)) == 2
        assert await equal_job.awaited_result(queue, job) == first
        damaged = first.outputs[0].model_copy(update={"sha256": "another"})
        assert await equal_job.read(store, Patience(1), damaged) is None
        newer = job.model_copy(update={"fingerprint": "newer"})
        assert await equal_job.awaited_result(queue, newer) is None
