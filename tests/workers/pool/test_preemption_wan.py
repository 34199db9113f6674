"""Preemption of a video for an image on one tiny model: two buckets of one pool."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import jax
import pytest
from redis.asyncio import Redis

from models import registry
from models.interface.pipeline import Pipeline, PyTree
from models.interface.step_program import StepProgram
from models.parallel.axis_rules import Layout
from service.jobs.model.job import PRIORITIES, Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.jobs import ended, pixels, reached
from tests.workers.polling import until
from tests.workers.pool.test_preemption import AT_ONCE, states, until_room_is_made
from tests.workers.running_worker import at_work
from tests.workers.toy import Gate

PICTURE: dict[str, Any] = {
    "prompt": "a red circle",
    "negative_prompt": "",
    "seed": 1,
    "width": 32,
    "height": 48,
    "num_frames": 1,
    "fps": 8,
    "num_inference_steps": 6,
    "guidance_scale": 4.0,
    "max_sequence_length": 16,
    "num_images": 1,
    "output": {"format": "png"},
}
CLIP = {**PICTURE, "seed": 2, "num_frames": 9, "num_inference_steps": 400}
"""Video with far more steps than pass the gate before the worker's first query of the queue."""


class Gated:
    """Pipeline whose steps wait at a gate, in the device's time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.gate = Gate()
        self.compile_gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def step(
        self,
        program: StepProgram,
        weights: PyTree,
        rows: PyTree,
        values: Mapping[str, jax.Array],
        modulations: PyTree = None,
    ) -> PyTree:
        rows = self._pipeline.step(program, weights, rows, values, modulations)
        latents = rows["latents"]
        return {**rows, "latents": jax.pure_callback(self.gate, jax.typeof(latents), latents)}


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    from tests.parity.tiny_wan import make_wan  # imports torch

    folder = make_wan(tmp_path_factory.mktemp("wan"), transformer={"num_layers": 1})
    return registry.load("wan", str(folder), "float32", {})


def a_job(wan: Pipeline, request: dict[str, Any], **fields: Any) -> Job:
    steps = request["num_inference_steps"]
    bucket = wan.spec.bucket(request)
    job = Job(id=new_job_id(), model="wan", bucket=bucket, request=request, steps=steps)
    return job.model_copy(update=fields)


async def test_preempted_video_is_bitwise_equal(
    wan: Pipeline, layout: Layout, queue: Queue, store: Store, empty_redis: Redis
) -> None:
    gated = Gated(wan)
    gated.gate.open()  # for the warm-up
    clip, undisturbed = [a_job(wan, CLIP, priority=PRIORITIES["low"]) for _ in range(2)]
    picture = a_job(wan, PICTURE, run_s=1e-6)
    assert clip.bucket != picture.bucket

    async def is_ready() -> bool:
        return any(status.ready for status in (await queue.models()).values())

    async with at_work(gated, layout, queue, store, **AT_ONCE | {"warmup": PICTURE}):
        await until(is_ready)
        gated.gate.close()
        await queue.put(clip)
        await reached(queue, clip, JobState.RUNNING)
        await queue.put(picture)
        await until_room_is_made(empty_redis, gated.gate, picture)
        gated.gate.open()
        picture, clip = await ended(queue, picture), await ended(queue, clip)
        await queue.put(undisturbed)
        undisturbed = await ended(queue, undisturbed)
    assert await states(queue, clip) == ["queued", "running", "queued", "running", "succeeded"]
    assert await states(queue, undisturbed) == ["queued", "running", "succeeded"]
    assert picture.finished_at < clip.finished_at
    frames, expected = await pixels(store, clip), await pixels(store, undisturbed)
    assert len(frames) == 9
    assert all((image == other).all() for image, other in zip(frames, expected, strict=True))
    assert max(frame.std() for frame in frames) > 10, "a video without contrast proves nothing"
