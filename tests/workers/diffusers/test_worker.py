"""Worker of a diffusers model in this process, at the real queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store, input_key
from service.settings.pools import PoolSettings
from tests.workers.diffusers.direct import called, file_of, picture
from tests.workers.jobs import ended, pixels, reached
from tests.workers.polling import DEADLINE_S, until
from workers.diffusers.engine import DiffusersEngine
from workers.diffusers.load import LoadedPipelines
from workers.pool.worker import Worker, WorkerParts

pytestmark = pytest.mark.filterwarnings("ignore:::diffusers", "ignore:::transformers")


def job_of(spec: ModelSpec, **fields: Any) -> Job:
    """Return a job of a model, as the front end creates it."""
    task = "image-to-image" if "image" in fields else "text-to-image"
    request = {
        **{**spec.defaults_for(task), "num_inference_steps": 3, "prompt": "a star", "seed": 5},
        **{"num_images": 1, "output": {"format": "png"}, **fields},
    }
    images = request["num_images"]
    return Job(
        id=new_job_id(),
        model=spec.name,
        bucket=spec.bucket(request),
        request=request,
        images=images,
        steps=request["num_inference_steps"] * images,
    )


@asynccontextmanager
async def at_work(
    engine: DiffusersEngine, queue: Queue, store: Store, **settings: Any
) -> AsyncIterator[tuple[Worker, asyncio.Task[int]]]:
    """Run a worker; it has ended when the context exits."""
    pool = PoolSettings(model="sd", preview_every_s=0, **settings)
    worker = Worker("sd", WorkerParts(engine, queue, store), pool, lease_s=3.0)
    spec = engine.pipeline.spec
    task = asyncio.create_task(worker.run([{**spec.defaults, "prompt": "", "seed": 0}]))
    try:
        yield worker, task
        worker.stop_now()
        await asyncio.wait_for(task, DEADLINE_S)
    finally:
        task.cancel()


async def test_jobs_become_files(
    engine: DiffusersEngine, pipelines: LoadedPipelines, queue: Queue, store: Store
) -> None:
    """Each image of a job equals a direct call with its own seed."""
    spec, image = pipelines.spec, picture()
    key = input_key("a-job", "image")
    await store.put(key, file_of(image), "image/png")
    plain, redrawn = job_of(spec, num_images=2), job_of(spec, image=key, strength=0.5)
    async with at_work(engine, queue, store):
        for job in (plain, redrawn):
            await queue.put(job)
        plain, redrawn = [await ended(queue, job) for job in (plain, redrawn)]
        listed = (await queue.models())["sd"]
    for number, made in enumerate(await pixels(store, plain)):
        fields = {**plain.request, "seed": 5 + number}
        assert np.array_equal(made, called(pipelines.default, fields))
    (made,) = await pixels(store, redrawn)
    direct = called(pipelines.by_task["image-to-image"], redrawn.request, image=image)
    assert np.array_equal(made, direct)
    assert plain.outputs[0].made_by == pipelines.place.made_by
    assert plain.step == plain.steps == plain.usage.steps == 8, "PNDM adds a step to each image"
    assert (listed.spec.backend, "resume" in listed.spec.lacks) == ("diffusers", True)


async def test_drain_releases_jobs_that_cannot_finish(
    engine: DiffusersEngine, pipelines: LoadedPipelines, queue: Queue, store: Store
) -> None:
    job = job_of(pipelines.spec, num_inference_steps=900)
    async with at_work(engine, queue, store, drain_s=0.1) as (worker, task):
        await queue.put(job)

        async def is_running() -> bool:
            return (await queue.get(job.id)).step > 0

        await until(is_running)
        worker.stop()
        assert await asyncio.wait_for(task, DEADLINE_S) == 0
    job = await reached(queue, job, JobState.QUEUED)
    assert not job.deaths and not job.snapshots, "another worker starts it again"


async def test_a_canceled_job_frees_the_pipeline(
    engine: DiffusersEngine, pipelines: LoadedPipelines, queue: Queue, store: Store
) -> None:
    long, short = job_of(pipelines.spec, num_inference_steps=900), job_of(pipelines.spec)
    async with at_work(engine, queue, store):
        await queue.put(long)
        await reached(queue, long, JobState.RUNNING)
        await queue.put(short)
        await queue.cancel(long.id)
        assert (await ended(queue, short)).state is JobState.SUCCEEDED
    assert (await queue.get(long.id)).state is JobState.CANCELED
