"""Reuse of an equal job's outputs: copy them instead of generating them again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from contextlib import aclosing

from redis.exceptions import RedisError

from service.jobs.model.job import Job, JobState, Output
from service.jobs.queue import Queue
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from workers.retry import Patience

log = logging.getLogger(__name__)


async def awaited_result(queue: Queue, job: Job) -> Job | None:
    """Return the job that this one awaits, once it has generated the images both request.

    Waits while that job runs, where it began earlier: in the same worker to its end, in another one
    no longer than `patience_s`. Returns None if it runs longer, is queued or requeued, does not
    succeed, used other weights, or if Redis is unreachable. Then this job must generate its own
    outputs.
    """
    try:
        other = await queue.get(str(job.awaited))
        if other is None or (other.tenant, other.fingerprint) != (job.tenant, job.fingerprint):
            return None
        if other.state is JobState.RUNNING:
            async with asyncio.timeout(None if other.pool == job.pool else patience_s(job)):
                other = await _ended(queue, other.id)
    except TimeoutError:
        log.info("job %s is generated: equal job %s takes longer", job.id, job.awaited)
        return None
    except (RedisError, OSError) as error:
        details = (job.id, job.awaited, error)
        log.info("job %s is generated: equal job %s cannot be read (%s)", *details)
        return None
    return other if other and other.state is JobState.SUCCEEDED else None


def patience_s(job: Job) -> float:
    """Return how long to wait for a job of another worker, which may be slower.

    As long as this job takes alone, so that the wait at most doubles its time, and only while it
    can still meet its deadline; 0 if its time is unknown.
    """
    run_s = job.run_s or 0.0
    if job.deadline_at is None:
        return run_s
    return max(0.0, min(run_s, job.deadline_at - time.time() - run_s))


async def _ended(queue: Queue, job_id: str) -> Job | None:
    """Wait until another job is no longer running; return its latest record."""
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
