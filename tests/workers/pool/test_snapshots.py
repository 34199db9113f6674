"""State that a worker keeps of its jobs for itself and others: drains, snapshots, finished
images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState, Output, Snapshot
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, snapshot_key
from tests.workers.jobs import ended, pixels, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.running_worker import at_work, has_step, swept
from tests.workers.toy import SPEC, ToyPipeline, reference
from workers.pool.snapshots import PAUSE_S
from workers.programs.batch_sizes import BatchSizes, exact


async def test_drain_finishes_running_jobs_and_leaves_waiting_ones(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    running, waiting = toy_job(phase="gated"), toy_job()
    await queue.put(running)
    async with at_work(pipeline, layout, queue, store) as (worker, task):
        await asyncio.to_thread(pipeline.gate.wait)
        worker.stop()
        await queue.put(waiting)
        pipeline.gate.open()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    assert (await queue.get(running.id)).state == JobState.SUCCEEDED
    assert (await queue.get(waiting.id)).state == JobState.QUEUED


@pytest.mark.parametrize("how", ["too long", "a second signal"])
async def test_unfinished_job_is_released_at_the_drain_timeout(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, how: str
) -> None:
    job = toy_job(phase="gated", num_inference_steps=50)
    await queue.put(job)
    drain_s = 0.1 if how == "too long" else 1000
    async with at_work(pipeline, layout, queue, store, drain_s=drain_s) as (worker, task):
        await asyncio.to_thread(pipeline.gate.wait)
        worker.stop()
        if how == "a second signal":
            worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)


def flipped(data: bytes) -> bytes:
    """Flip one bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data: bytes) -> bytes:
    return data[:-1]


@pytest.mark.parametrize(
    ("damage", "batching"),
    [(None, None), (flipped, None), (cut, None), (None, exact(2))],
    ids=["whole", "bit", "cut", "two rows"],
)
async def test_drained_job_resumes_elsewhere(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    store: Store,
    damage: Callable[[bytes], bytes] | None,
    batching: BatchSizes | None,
    put_aside_at_once: float,
) -> None:
    """A step that takes too long is dropped, and earlier steps are not repeated.

    All are repeated if the snapshot is damaged, or was made by other programs than those that
    resume.
    """
    job = toy_job(phase="gated", num_inference_steps=50, seed=3)
    await queue.put(job)
    drain_s = put_aside_at_once
    async with at_work(pipeline, layout, queue, store, drain_s=drain_s) as (worker, task):
        pipeline.gate.open(3)
        await until(lambda: has_step(queue, job.id, 2))
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await queue.get(job.id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    [snapshot] = job.snapshots
    assert (snapshot.index, snapshot.fence) == (0, 1)
    assert 2 <= snapshot.step <= 3, (
        "the gate was open for three steps, two of them known to be done"
    )
    if damage:
        await store.put(
            snapshot.key, damage(await store.get(snapshot.key)), "application/octet-stream"
        )
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store, batching=batching):
        job = await ended(queue, job)
        assert other.gate.count == (50 if damage or batching else 50 - snapshot.step)
    [picture] = await pixels(store, job)
    assert (
        np.abs(picture - reference(other, job.request).astype(int)).max() <= 1
    )  # as in test_engine
    assert (job.usage.steps, job.snapshots) == (50, [])
    await until(lambda: swept(queue, store))
    assert not await store.exists(snapshot.key)


async def test_finished_images_are_not_repeated(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, put_aside_at_once: float
) -> None:
    job = toy_job(phase="gated", num_inference_steps=10, num_images=2)
    await queue.put(job)
    drain_s = put_aside_at_once
    async with at_work(pipeline, layout, queue, store, slots=1, drain_s=drain_s) as (worker, task):
        pipeline.gate.open(13)

        async def one_is_finished() -> bool:
            return bool((await queue.get(job.id)).snapshots) and pipeline.gate.count == 14

        await until(one_is_finished)
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    finished, unfinished = sorted(
        (await queue.get(job.id)).snapshots, key=lambda snapshot: -snapshot.step
    )
    assert (finished.step, finished.key) == (10, None)
    assert 2 <= unfinished.step <= 3
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        job = await ended(queue, job)
        assert other.gate.count == 10 - unfinished.step
    assert job.outputs[finished.index] == finished.outputs[0]
    for index, picture in enumerate(await pixels(store, job)):
        expected = reference(other, {**job.request, "seed": index}).astype(int)
        assert np.abs(picture - expected).max() <= 1  # as in test_engine
    assert job.usage.steps == job.step == 20


@pytest.mark.parametrize("what", ["the snapshot", "the finished image"])
async def test_missing_output_is_generated_again(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, what: str
) -> None:
    job = toy_job(num_images=2)
    await queue.put(job)
    [claim] = await queue.claim("before", SPEC.name, 2)
    key = f"outputs/{job.id}/1-0.png"
    file = Output(
        index=0, key=key, content_type="image/png", width=1, height=1, seed=0, sha256="", bytes=1
    )
    snapshots = {
        "the snapshot": Snapshot(index=0, step=2, fence=1, key=snapshot_key(job.id, 1, 0, 2)),
        "the finished image": Snapshot(index=0, step=4, fence=1, outputs=(file,)),
    }
    assert await queue.snapshot(claim, [snapshots[what]])
    await queue.release(claim)
    async with at_work(pipeline, layout, queue, store):
        job = await ended(queue, job)
    assert len(await pixels(store, job)) == 2
    assert job.usage.steps == 8


async def test_running_job_is_snapshotted_within_its_budget(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_inference_steps=4000)
    await queue.put(job)
    keys: set[str] = set()

    async def is_done() -> bool:
        nonlocal job
        job = await queue.get(job.id)
        keys.update(snapshot.key for snapshot in job.snapshots)
        return job.state.ended

    async with at_work(pipeline, layout, queue, store, snapshot_share=0.9):
        await until(is_done)
        assert job.state == JobState.SUCCEEDED
    assert len(keys) >= 2
    await until(lambda: swept(queue, store))
    assert not any([await store.exists(key) for key in keys])


async def test_unavailable_store_is_not_retried_at_each_step(
    pipeline: ToyPipeline,
    layout: Layout,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "snapshots").write_text("a file where a folder should be")
    job = toy_job(num_inference_steps=4000)
    await queue.put(job)
    began = time.monotonic()
    async with at_work(pipeline, layout, queue, store, snapshot_share=0.9):
        assert (await ended(queue, job)).state == JobState.SUCCEEDED
        attempts = caplog.text.count("the snapshot of image")
        assert 1 <= attempts <= 1 + (time.monotonic() - began) / PAUSE_S
