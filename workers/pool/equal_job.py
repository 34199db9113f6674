"""Another job that draws the same: what it has drawn is copied, not drawn twice."""

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


async def drawn_by(queue: Queue, job: Job) -> Job | None:
    """Return the job that this one awaits, once it has drawn what both ask for.

    Waits while that is running in the same pool, where it has begun before. None: it runs in
    another, is queued, goes back to the queue, ends otherwise, was drawn by other weights, or Redis
    is away meanwhile; then this one is to be drawn.
    """
    try:
        other = await queue.get(str(job.awaits))
        if other is None or (other.tenant, other.fingerprint) != (job.tenant, job.fingerprint):
            return None
        if other.state is JobState.RUNNING and other.pool == job.pool:
            other = await _ended(queue, other.id)
    except (RedisError, OSError) as error:
        log.info("job %s is drawn: %s is out of sight (%s)", job.id, job.awaits, error)
        return None
    return other if other and other.state is JobState.SUCCEEDED else None


async def _ended(queue: Queue, job_id: str) -> Job | None:
    """Wait until a job runs no more; return it as it is then."""
    async with aclosing(queue.events(job_id)) as events:
        async for event in events:
            if event.name == JobState.QUEUED:  # of its past, or it was given back
                job = await queue.get(job_id)
                if job is None or job.state is JobState.QUEUED:
                    return job
    return await queue.get(job_id)


async def read(store: Store, patience: Patience, output: Output) -> bytes | None:
    """Return a file of a job; None: it is gone, or not what it was."""
    try:
        data = await patience.until_stored(store.get, output.key)
    except StoreError as error:
        log.info("%s is not copied: %s", output.key, error)
        return None
    return data if hashlib.sha256(data).hexdigest() == output.sha256 else None
