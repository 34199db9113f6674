"""Example jobs, outputs and errors for the tests of the queue."""

from __future__ import annotations

from typing import Any

from service.jobs.model.job import Job, JobError, Output, Snapshot, Usage, new_job_id
from service.jobs.queue import Claim, Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import snapshot_key

MODEL = "flux-demo"
FAILURE = JobError(code="non_finite", message="the latents are not finite; try another seed")
USAGE = Usage(steps=28, device_seconds=2.5, queue_seconds=0.5)


def a_job(**fields: Any) -> Job:
    defaults = {"id": new_job_id(), "model": MODEL, "bucket": "96x96", "steps": 28}
    return Job.model_validate(defaults | fields)


async def let_expire(queue: Queue, job_id: str) -> None:
    """Set a job's deadline in Redis to a time in the past."""
    await queue.redis.hset(keys.job(job_id), "deadline_at", 1)
    await queue.redis.zadd(f"{keys.PREFIX}deadlines", {job_id: 1})


def an_output(job: Job) -> Output:
    return Output(
        index=0,
        key=f"outputs/{job.id}/1-0.png",
        content_type="image/png",
        width=96,
        height=96,
        seed=7,
        sha256="0" * 64,
        bytes=1234,
    )


def a_snapshot(claim: Claim, index: int = 0, step: int = 1) -> Snapshot:
    key = snapshot_key(claim.job.id, claim.fence, index, step)
    return Snapshot(index=index, step=step, fence=claim.fence, key=key)
