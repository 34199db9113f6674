"""Preemption: a worker suspends a long job for a short one and resumes it. No step runs twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from models.parallel.axis_rules import Layout
from service.jobs.model.job import PRIORITIES, Job, JobState
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, pixels, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work
from tests.workers.toy import SPEC, Gate, ToyPipeline, reference

WARM_UP = dict(SPEC.defaults)
STEPS = 1000
"""Far more steps than pass the gate before the worker's first query of the queue."""
AT_ONCE = {"slots": 1, "quantum_s": 0.02, "snapshot_share": 0.99, "warmup": WARM_UP}
"""Settings of a pool that preempts whenever it may."""


def a_clip(**fields: object) -> Job:
    """Return a long job of its own bucket, with low priority."""
    job = toy_job(phase="gated", width=64, num_inference_steps=STEPS, **fields)
    return job.model_copy(update={"priority": PRIORITIES["low"]})


def a_picture(**fields: object) -> Job:
    """Return a job with a known run time of almost zero."""
    return toy_job(**fields).model_copy(update={"run_s": 1e-6})


async def until_room_is_made(redis: Redis, gate: Gate, job: Job) -> None:
    """Let single steps through the gate until a worker makes room for the job."""

    async def is_promised() -> bool:
        gate.open(1)
        return await redis.hexists(keys.job(job.id), "room")

    await until(is_promised)


async def states(queue: Queue, job: Job) -> list[str]:
    return [event.name async for event in queue.events(job.id) if event.name != "progress"]


def put_aside_so_far() -> float:
    labels = {"model": SPEC.name}
    return REGISTRY.get_sample_value("atelier_preemptions_total", labels) or 0


async def test_video_is_preempted_for_an_image_and_resumes(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, empty_redis: Redis
) -> None:
    clip, picture, before = a_clip(seed=3), a_picture(seed=4), put_aside_so_far()
    await queue.put(clip)
    async with at_work(pipeline, layout, queue, store, **AT_ONCE):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.put(picture)
        await until_room_is_made(empty_redis, pipeline.gate, picture)
        pipeline.gate.open()
        picture, clip = await ended(queue, picture), await ended(queue, clip)
        assert pipeline.gate.count == STEPS, "a step was done twice"
        undisturbed = a_clip(seed=3)
        await queue.put(undisturbed)
        undisturbed = await ended(queue, undisturbed)
    assert picture.started_at < clip.started_at
    assert picture.finished_at < clip.finished_at
    assert await states(queue, clip) == ["queued", "running", "queued", "running", "succeeded"]
    assert (clip.attempts, clip.deaths, clip.usage.steps) == (1, [], STEPS)
    assert put_aside_so_far() == before + 1
    [image], [expected] = await pixels(store, clip), await pixels(store, undisturbed)
    assert (image == expected).all()
    [image] = await pixels(store, picture)
    assert (
        np.abs(image - reference(pipeline, picture.request).astype(int)).max() <= 1
    )  # test_engine


async def test_only_one_job_is_preempted(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, empty_redis: Redis
) -> None:
    """Only the job of low priority is preempted. The other job has the image's priority."""
    low, neighbour, before = a_clip(), a_clip(seed=1), put_aside_so_far()
    neighbour = neighbour.model_copy(update={"priority": PRIORITIES["normal"]})
    picture = a_picture()
    for job in (low, neighbour):
        await queue.put(job)
    async with at_work(pipeline, layout, queue, store, **AT_ONCE | {"slots": 2}):
        for job in (low, neighbour):
            await reached(queue, job, JobState.RUNNING)
        await queue.put(picture)
        await until_room_is_made(empty_redis, pipeline.gate, picture)
        pipeline.gate.open()
        ends = [await ended(queue, job) for job in (low, neighbour, picture)]
    assert [job.state for job in ends] == [JobState.SUCCEEDED] * 3
    assert await states(queue, low) == ["queued", "running", "queued", "running", "succeeded"]
    assert await states(queue, neighbour) == ["queued", "running", "succeeded"]
    assert put_aside_so_far() == before + 1


async def test_job_that_cannot_be_snapshotted_is_not_preempted(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, empty_redis: Redis, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "outputs"))
    (tmp_path / "outputs" / "snapshots").write_text("a file where a folder should be")
    clip, picture, before = a_clip(), a_picture(), put_aside_so_far()
    await queue.put(clip)
    async with at_work(pipeline, layout, queue, store, **AT_ONCE):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.put(picture)
        await until_room_is_made(empty_redis, pipeline.gate, picture)
        pipeline.gate.open()
        clip, picture = await ended(queue, clip), await ended(queue, picture)
    assert await states(queue, clip) == ["queued", "running", "succeeded"]
    assert picture.state == JobState.SUCCEEDED
    assert (pipeline.gate.count, put_aside_so_far()) == (STEPS, before)


async def test_drain_during_a_preemption(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, empty_redis: Redis
) -> None:
    """Preemption and drain wait for a step that does not end, but the drain gives up in time."""
    clip, picture = a_clip(), a_picture()
    await queue.put(clip)
    async with at_work(pipeline, layout, queue, store, drain_s=5, **AT_ONCE) as (worker, task):
        await asyncio.to_thread(pipeline.gate.wait)
        await queue.put(picture)
        await until_room_is_made(empty_redis, pipeline.gate, picture)
        pipeline.gate.close()
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    clip = await reached(queue, clip, JobState.QUEUED)
    assert (clip.attempts, clip.deaths) == (0, [])
    assert clip.step > 0
