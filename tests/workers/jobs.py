"""Jobs for the tests of a pool, and what has become of them."""

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
    """A job for the toy pipeline, as the front end would put it."""
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
    """The job after its end."""
    return await reached(queue, job, *(state for state in JobState if state.ended))


async def reached(queue: Queue, job: Job, *states: JobState) -> Job:
    """The job as soon as it is in one of these states."""

    async def is_there() -> bool:
        nonlocal job
        job = await queue.get(job.id) or job
        return job.state in states

    await until(is_there)
    return job


async def lapse(queue: Queue, job: Job) -> None:
    """Let the lease of a running job's pool lapse now, as if the pool were not heard any more."""
    before = await queue.get(job.id) or job
    await queue.redis.hset(keys.pools(job.model), before.pool, "ready 0")

    async def is_lost() -> bool:
        await queue.redis.zadd(keys.LEASES, {job.id: 0}, xx=True)
        await queue.redis.delete(f"{keys.PREFIX}reaped")  # or the time since would excuse the pool
        await queue.reap()
        now = await queue.get(job.id) or before
        return now.state != JobState.RUNNING or len(now.deaths) > len(before.deaths)

    await until(is_lost)  # a pool that lives may renew it in between


async def lapsed(queue: Queue, job: Job) -> Job:
    """The job after that; its pool does not answer, and no other one takes it."""
    await lapse(queue, job)
    job = await queue.get(job.id) or job
    assert job.state == JobState.QUEUED
    return job


async def pixels(store: Store, job: Job) -> list[np.ndarray]:
    """The job's images, read from the store."""
    assert job.state == JobState.SUCCEEDED, job.error
    files = [await store.get(output.key) for output in job.outputs]
    return [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]
