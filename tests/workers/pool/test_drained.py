"""A pool that an operator drains puts its jobs aside and stays; resumed, it goes on with them."""

from __future__ import annotations

from models.parallel.axis_rules import Layout
from service.jobs.model.job import JobState
from service.jobs.operations import Pause
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from tests.workers.at_work import at_work, has_step
from tests.workers.jobs import toy_job
from tests.workers.polling import until
from tests.workers.toy import ToyPipeline

DRAIN = Pause(by="op", at=1.0, drains=True)
ENDLESS = 200_000
"""Steps of a job that does not end by itself here."""


async def test_what_runs_is_put_aside_and_goes_on(
    pipeline: ToyPipeline, layout: Layout, queue: Queue, store: Store
) -> None:
    job = toy_job(num_inference_steps=ENDLESS)
    await queue.put(job)
    async with at_work(pipeline, layout, queue, store, lease_s=0.6) as (pool, task):
        await until(lambda: has_step(queue, job.id, 3))
        await queue.pause("pool", "toy", DRAIN)

        async def is_back() -> bool:
            found = await queue.get(job.id)
            return found is not None and found.state is JobState.QUEUED and not pool.jobs

        await until(is_back)
        back = await queue.get(job.id)
        assert back is not None and back.attempts == 0 and back.step > 0, "what it did is kept"
        assert not task.done() and pool.name in (await queue.models())[job.model].pools
        await queue.resume("pool", "toy")
        await until(lambda: has_step(queue, job.id, back.step + 1))
        await queue.cancel(job.id)
