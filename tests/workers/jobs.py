"""Helpers for jobs in tests of workers: create, await, expire leases, read images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from service.jobs.model.job import Job, JobState, new_job_id
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from tests.workers.polling import until
from tests.workers.toy import SPEC


def toy_job(**fields: Any) -> Job:
    """Return a job for the toy pipeline, as the front end creates it."""
    request = {**SPEC.defaults, "num_images": 1, "output": {"format": "png"}, **fields}
    images = request["num_images"]
    return Job(
        id=new_job_id(),
        model=SPEC.name,
        bucket=SPEC.bucket(request),
        request=request,
        images=images,
        steps=request["num_inference_steps"] * images,
    )


async def ended(queue: Queue, job: Job) -> Job:
    """Wait for the job's end, and return it."""
    return await reached(queue, job, *(state for state in JobState if state.ended))


async def reached(queue: Queue, job: Job, *states: JobState) -> Job:
    """Wait for one of these states, and return the job."""

    async def is_there() -> bool:
        nonlocal job
        job = await queue.get(job.id) or job
        return job.state in states

    await until(is_there)
    return job


async def lapse(queue: Queue, job: Job) -> None:
    """Expire the lease of a running job, as if its worker no longer responded."""
    before = await queue.get(job.id) or job
    await queue.redis.hset(keys.pools(job.model), before.pool, "ready 0")

    async def is_lost() -> bool:
        await queue.redis.zadd(keys.LEASES, {job.id: 0}, xx=True)
        await queue.redis.delete(f"{keys.PREFIX}reaped")  # or the pause excuses the worker
        await queue.reap()
        now = await queue.get(job.id) or before
        return now.state != JobState.RUNNING or len(now.deaths) > len(before.deaths)

    await until(is_lost)  # a live worker may renew the lease in between


async def lapsed(queue: Queue, job: Job) -> Job:
    """Expire the job's lease and return the queued job. No live worker may be able to claim it."""
    await lapse(queue, job)
    job = await queue.get(job.id) or job
    assert job.state == JobState.QUEUED
    return job


async def pixels(store: Store, job: Job) -> list[np.ndarray]:
    """Read the job's images from the store."""
    assert job.state == JobState.SUCCEEDED, job.error
    files = [await store.get(output.key) for output in job.outputs]
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]
