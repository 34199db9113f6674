"""Reuse of an equal job's outputs: copy them instead of generating them again."""

from __future__ import annotations

import hashlib
import logging
from contextlib import aclosing

from redis.exceptions import RedisError

from service.jobs.model.job import Job, JobState, Output
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from workers.retry import Patience

log = logging.getLogger(__name__)


async def awaited_result(queue: Queue, job: Job) -> Job | None:
    """Return the job that this one awaits, once it has generated the outputs both request.

    Waits while that job runs in the same worker, where it began earlier. Returns None if it runs
    elsewhere, is queued or requeued, does not succeed, used other weights, or if Redis is
    unreachable. Then this job must generate its own outputs.
    """
    try:
        other = await queue.get(str(job.awaits))
        if other is None or (other.tenant, other.fingerprint) != (job.tenant, job.fingerprint):
            return None
        if other.state is JobState.RUNNING and other.pool == job.pool:
            other = await _ended(queue, other.id)
    except (RedisError, OSError) as error:
        log.info("job %s is generated: equal job %s cannot be read (%s)", job.id, job.awaits, error)
        return None
    return other if other and other.state is JobState.SUCCEEDED else None


async def _ended(queue: Queue, job_id: str) -> Job | None:
    """Wait until a job is no longer running; return its latest record."""
    async with aclosing(queue.events(job_id)) as events:
        async for event in events:
            if event.name == JobState.QUEUED:  # an old event, or it was released
                job = await queue.get(job_id)
                if job is None or job.state is JobState.QUEUED:
                    return job
    return await queue.get(job_id)


async def read(store: Store, patience: Patience, output: Output) -> bytes | None:
    """Return a job's output file; None: missing or changed."""
    try:
        data = await patience.until_stored(store.get, output.key)
    except StoreError as error:
        log.info("%s is not copied: %s", output.key, error)
        return None
    return data if hashlib.sha256(data).hexdigest() == output.sha256 else None
