"""Outcome: what a client that waits for a job at a door gets of it."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError

from service.errors.handlers import log
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.jobs.model.job import Job
from service.responses.render import without_output
from service.responses.wait import until_ended
from service.routes.compat.call import Call


async def ended(call: Call, job: Job) -> Job:
    """Return the job once it has succeeded.

    A job whose client leaves is canceled, unless the settings or its Idempotency-Key say that
    somebody may come back for it.

    Raises: Problem: it ended without outputs, or has not ended within `limits.max_wait_s`.
    """
    job = await until_ended(call.front, job, call.front.settings.limits.max_wait_s, call.request)
    if not job.state.ended and await call.request.is_disconnected():
        await left(call, job)
    if not job.state.is_done:
        raise without_output(job)
    return job


async def left(call: Call, job: Job) -> None:
    """Cancel the job of a client that has left, where nobody will ask for it."""
    if not call.front.settings.server.cancel_when_left:
        return
    if "idempotency-key" not in call.request.headers:
        await call.front.queue.cancel(job.id)


_LEAVING: set[asyncio.Task[None]] = set()
"""Tasks that cancel jobs; the event loop itself keeps no task."""


def leave(call: Call, job: Job) -> None:
    """Cancel as `left`, beside a stream that is being torn down and may not wait itself."""

    async def cancel() -> None:
        try:
            await left(call, job)
        except RedisError as error:
            log.warning("the job %s, whose client has left, goes on: %s", job.id, error)

    task = asyncio.create_task(cancel())
    _LEAVING.add(task)
    task.add_done_callback(_LEAVING.discard)


async def files(front: FrontEnd, job: Job, hold: Hold) -> list[bytes]:
    """Return the job's files in their order.

    Args:
        hold: counts their bytes; its owner closes it once they are sent.

    Raises: Problem: one is gone or damaged, or too many bytes are in flight.
    """
    found = []
    for output in job.outputs:
        hold.add(output.bytes)
        found.append(await front.outputs.read(output))
    return found
