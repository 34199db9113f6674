"""Drain by an operator: a worker suspends its jobs and keeps running; after a resume it continues
them."""

from __future__ import annotations

from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.operations import Pause
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.jobs import toy_job
from tests.workers.polling import until
from tests.workers.running_worker import at_work, has_step
from tests.workers.toy import ToyPipeline

DRAIN = Pause(by="op", at=1.0, drains=True)
ENDLESS = 200_000
"""Number of steps of a job that does not end within a test."""


async def test_running_job_is_suspended_and_resumes(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_inference_steps=ENDLESS)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, lease_s=0.6) as (worker, task):
        await until(lambda: has_step(queue, job.id, 3))
        await queue.pause("pool", "toy", DRAIN)

        async def is_back() -> bool:
            current = await queue.get(job.id)
            return current is not None and current.state is JobState.QUEUED and not worker.jobs

        await until(is_back)
        queued = await queue.get(job.id)
        assert queued is not None and queued.attempts == 0 and queued.step > 0, (
            "what it did is kept"
        )
        assert not task.done() and worker.name in (await queue.models())[job.model].pools
        await queue.resume("pool", "toy")
        await until(lambda: has_step(queue, job.id, queued.step + 1))
        await queue.cancel(job.id)
