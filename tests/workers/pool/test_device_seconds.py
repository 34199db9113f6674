"""Device time of jobs, reported to clients and charged to tenants.

It includes attempts that died, were given back or failed, and compilation that outlives its job.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Mapping

import pytest
from PIL import Image

from models.interface.pipeline import Fields, PreparedRow
from models.media.scaling import FrameScaling
from models.parallel.axis_rules import Layout
from service.admission.drafts import Drafts
from service.jobs.model.job import Job, JobState
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.tenants import TenantSettings
from tests.hostile_images import video
from tests.workers.jobs import ended, reached, toy_job
from tests.workers.polling import DEADLINE_S, until
from tests.workers.pool.test_audition import auditioned, continuation
from tests.workers.running_worker import at_work, has_step
from tests.workers.toy import ToyPipeline

LIMITS = TenantSettings(device_seconds_per_hour=1e6)
WARM = {"width": 32, "height": 16}
NEW = {"width": 48, "height": 16, "phase": "slow-to-compile"}
MIN_READING_S = 0.05
"""Minimum time of a process that starts, decodes three frames and scales them."""
READING_S = 0.2
ROUNDED_S = 1e-5
"""Rounding of a few amounts in millionths."""


async def charged(queue: Queue, job: Job) -> float:
    """Return the device seconds of the job's tenant, which has no other jobs."""
    return (await queue.quota_usage(job.tenant, LIMITS)).device_seconds


async def compiles(queue: Queue, job: Job, pipeline: ToyPipeline) -> bool:
    """Return whether the job reports compilation, and its step's program is being compiled."""
    current = await queue.get(job.id)
    is_told = current is not None and current.detail is not None
    return is_told and pipeline.waits_to_compile.is_set()


async def goes_on_elsewhere(queue: Queue, layout: Layout, store: Store, job: Job) -> None:
    """Check that the job succeeds in another worker, and that its usage includes all attempts."""
    before = await queue.get(job.id)
    assert before.state is JobState.QUEUED and before.usage.device_seconds > 0
    other = ToyPipeline()
    other.gate.open()
    async with at_work(other, layout, queue, store):
        job = await ended(queue, job)
    assert job.state is JobState.SUCCEEDED
    assert job.usage.device_seconds > before.usage.device_seconds
    assert await charged(queue, job) == pytest.approx(job.usage.device_seconds, abs=ROUNDED_S)


async def test_usage_of_a_crashed_attempt(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, redis_url: str
) -> None:
    job = toy_job(phase="gated", num_inference_steps=20)
    await queue.put(job, limits=LIMITS)
    brief = await Queue.connect(redis_url, QueueSettings(lease_s=1e-6))
    async with at_work(pipeline, layout, queue, store, snapshot_share=1e-9) as (worker, task):
        pipeline.gate.open(3)
        await until(lambda: has_step(queue, job.id, 2))
        worker.engine.fail(RuntimeError("the device is gone"))  # type: ignore[attr-defined]
        pipeline.gate.open()
        assert await asyncio.wait_for(task, DEADLINE_S) == 1

        async def is_back() -> bool:
            current = await queue.get(job.id)
            await brief.redis.zadd("{atelier}:leases", {job.id: 0}, xx=True)
            await brief.reap()
            return current.state is JobState.QUEUED

        await until(is_back)
    await brief.close()
    assert not (await queue.get(job.id)).snapshots, "all of it is done again"
    await goes_on_elsewhere(queue, layout, store, job)


async def test_an_attempt_that_a_drain_gave_back(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, put_aside_at_once: float
) -> None:
    drain_s = put_aside_at_once
    job = toy_job(phase="gated", num_inference_steps=50)
    await queue.put(job, limits=LIMITS)
    async with at_work(pipeline, layout, queue, store, drain_s=drain_s) as (worker, task):
        pipeline.gate.open(3)
        await until(lambda: has_step(queue, job.id, 2))
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    await goes_on_elsewhere(queue, layout, store, job)


async def test_an_attempt_that_failed(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_inference_steps=20, nan_at=10)
    await queue.put(job, limits=LIMITS)
    async with at_work(pipeline, layout, queue, store):
        job = await ended(queue, job)
    assert (job.state, job.error.code) == (JobState.FAILED, "non_finite")
    assert job.usage.device_seconds > 0
    assert await charged(queue, job) == pytest.approx(job.usage.device_seconds, abs=ROUNDED_S)


@pytest.mark.parametrize("how", ["canceled", "deleted", "expired"])
async def test_compilation_for_a_canceled_job_is_charged(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store, how: str
) -> None:
    """The compilation is charged, and counts as running until it is over."""
    job, waiting = toy_job(**NEW), toy_job(width=40)
    await queue.put(job, limits=LIMITS)
    async with at_work(pipeline, layout, queue, store) as (worker, _):
        await until(lambda: compiles(queue, job, pipeline))
        if how == "canceled":
            await queue.cancel(job.id)
        elif how == "deleted":
            await queue.delete(job.id)
        else:
            await queue.redis.hset(f"{{atelier}}:job:{job.id}", "deadline_at", 1)
        await until(lambda: worker.jobs == 0)
        assert worker._running.compiling == 1
        await queue.put(waiting)
        before = await charged(queue, job)
        assert (await queue.get(waiting.id)).state is JobState.QUEUED
        pipeline.compile_gate.set()
        assert (await ended(queue, waiting)).state is JobState.SUCCEEDED

        async def is_charged() -> bool:
            return await charged(queue, job) > before

        await until(is_charged)
        assert worker._running.compiling == 0
    if how != "deleted":
        usage = (await queue.get(job.id)).usage
        assert usage.compile_seconds == usage.device_seconds
        assert await charged(queue, job) == pytest.approx(usage.device_seconds, abs=ROUNDED_S)


async def test_a_drain_does_not_wait_for_compilers(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(**NEW)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, drain_s=1e4) as (worker, task):
        await until(lambda: compiles(queue, job, pipeline))
        worker.stop()
        job = await reached(queue, job, JobState.QUEUED)
        pipeline.compile_gate.set()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    assert job.attempts == 0


async def test_compiled_bucket_may_need_further_programs(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """Another scheduler, for example, needs new programs.

    They count, and other compilations wait.
    """
    job, waiting = toy_job(phase="slow-to-compile"), toy_job(width=40)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, WARM) as (worker, _):
        await until(lambda: compiles(queue, job, pipeline))
        assert worker._running.compiling == 1
        pipeline.compile_gate.set()
        await queue.put(waiting)
        assert (await ended(queue, waiting)).state is JobState.SUCCEEDED
        assert worker._running.compiling == 0


async def test_reading_a_video(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    """The video is read once for all images of a job, at the model's size."""
    spec = pipeline.spec
    pipeline.spec = spec.model_copy(update={"frame_scaling": {"control_video": FrameScaling()}})
    pipeline.gate.open()
    job = toy_job(num_images=2, num_frames=5, control_video="inputs/a/control_video")
    await store.put("inputs/a/control_video", video(3, (1920, 1040)), "video/mp4")
    plain = toy_job(num_images=2, num_frames=5)
    async with at_work(pipeline, layout, queue, store):
        await queue.put(plain, limits=LIMITS)
        plain = await ended(queue, plain)
        await queue.put(job, limits=LIMITS)
        job = await ended(queue, job)
    assert job.state is JobState.SUCCEEDED, job.error
    assert [*pipeline.images] == [f"control_video.{number}" for number in range(3)]
    with Image.open(io.BytesIO(pipeline.images["control_video.0"])) as frame:
        assert frame.size == (32, 16)
    assert job.usage.device_seconds > MIN_READING_S
    both_s = plain.usage.device_seconds + job.usage.device_seconds
    assert await charged(queue, job) == pytest.approx(both_s, abs=ROUNDED_S)


class ReadingPipeline(ToyPipeline):
    """Toy that takes `READING_S` of CPU time to read a request's images."""

    reads = 0

    def prepare(self, fields: Fields, images: Mapping[str, bytes]) -> PreparedRow:
        began, self.reads = time.thread_time(), self.reads + bool(images)
        while images and time.thread_time() - began < READING_S:
            pass
        return super().prepare(fields, images)


@pytest.mark.parametrize(
    ("width", "state"), [(32, JobState.SUCCEEDED), (33, JobState.FAILED)], ids=["good", "refused"]
)
async def test_reading_images(
    layout: Layout, queue: Queue, store: Store, width: int, state: JobState
) -> None:
    """The images are read once for each output, also of a job that its model refuses then."""
    pipeline = ReadingPipeline()
    pipeline.gate.open()
    outputs = 2 if state is JobState.SUCCEEDED else 1  # the first failure cancels the others
    job = toy_job(num_images=outputs, width=width, image="inputs/a/image")
    await store.put("inputs/a/image", b"a file", "image/png")
    async with at_work(pipeline, layout, queue, store):
        await queue.put(job, limits=LIMITS)
        job = await ended(queue, job)
    assert job.state is state
    assert job.usage.device_seconds >= outputs * READING_S
    assert await charged(queue, job) == pytest.approx(job.usage.device_seconds, abs=ROUNDED_S)


async def test_reading_images_of_drafts(layout: Layout, queue: Queue, store: Store) -> None:
    """More steps than the draft's need both schedules, and preparing these reads the images."""
    pipeline = ReadingPipeline()
    await store.put("inputs/a/image", b"a file", "image/png")
    async with at_work(pipeline, layout, queue, store):
        parent = await auditioned(queue, num_images=1, image="inputs/a/image")
        reads = pipeline.reads
        steps = 2 * parent.request["num_inference_steps"]
        job = await continuation(store, Drafts(parent, (0,)), num_inference_steps=steps)
        await queue.put(job)
        usage = (await ended(queue, job)).usage
    assert pipeline.reads > reads + 1
    min_s = (pipeline.reads - reads) * READING_S
    assert usage.device_seconds - usage.compile_seconds >= min_s


async def test_a_video_that_cannot_be_read(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    spec = pipeline.spec
    pipeline.spec = spec.model_copy(update={"frame_scaling": {"control_video": FrameScaling()}})
    pipeline.gate.open()
    job = toy_job(num_frames=2, control_video="inputs/a/control_video")
    await store.put("inputs/a/control_video", video(3), "video/mp4")
    async with at_work(pipeline, layout, queue, store):
        await queue.put(job)
        job = await ended(queue, job)
    assert job.state is JobState.FAILED and job.error
    assert job.error.code == "invalid_request"
    assert "control_video: has more than 2 frames" in job.error.message
