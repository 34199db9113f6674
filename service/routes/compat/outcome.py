"""Wait for a job at a compatible endpoint, and read its output files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Response
from redis.exceptions import RedisError

from service.errors.handlers import log
from service.front_end.front_end import FrontEnd
from service.http.inflight_limits import Hold
from service.jobs.model.job import Job
from service.responses.padded_json import Head, padded_json
from service.responses.render import job_headers, job_headers_on_errors, problem_without_output
from service.responses.wait import wait_until_ended
from service.routes.compat.call import Call


async def json_once_ended(
    call: Call,
    job: Job,
    waiting: Hold,
    build: Callable[[], Awaitable[Response]],
    status: int = 200,
) -> Response:
    """Return the JSON response that `build` waits for, padded while the client waits for it.

    Args:
        waiting: counts the open request; the wait takes ownership of it.
        status: status of a successful response.

    Raises: Problem: within the first interval of `server.json_keep_alive_s`; later problems are
        sent as bodies.
    """

    async def work() -> Response:
        with waiting.transfer(), job_headers_on_errors(job):
            return await build()

    every_s = call.front.settings.server.json_keep_alive_s
    return await padded_json(call.request, work(), Head(job_headers(job), status), every_s)


async def wait_for_success(call: Call, job: Job) -> Job:
    """Return the job once it has succeeded.

    If the client disconnects, the job is canceled, unless the settings disable this or an
    Idempotency-Key lets the client return.

    Raises: Problem: it ended without outputs, or has not ended within `limits.max_wait_s`.
    """
    job = await wait_until_ended(
        call.front, job, call.front.settings.limits.max_wait_s, call.request
    )
    if not job.state.ended and await call.request.is_disconnected():
        await cancel_disconnected(call, job)
    if not job.state.is_done:
        raise problem_without_output(job)
    return job


async def cancel_disconnected(call: Call, job: Job) -> None:
    """Cancel a disconnected client's job, unless settings or an Idempotency-Key prevent it."""
    if not call.front.settings.server.cancel_when_left:
        return
    if "idempotency-key" not in call.request.headers:
        await call.front.queue.cancel(job.id)


_CANCELLATIONS: set[asyncio.Task[None]] = set()
"""References to the tasks that cancel jobs; the event loop holds only weak references."""


def cancel_in_background(call: Call, job: Job) -> None:
    """Call `cancel_disconnected` in a new task, for a closing stream, which cannot await."""

    async def cancel() -> None:
        try:
            await cancel_disconnected(call, job)
        except RedisError as error:
            log.warning("could not cancel the job %s, whose client disconnected: %s", job.id, error)

    task = asyncio.create_task(cancel())
    _CANCELLATIONS.add(task)
    task.add_done_callback(_CANCELLATIONS.discard)


async def read_output_files(front: FrontEnd, job: Job, hold: Hold) -> list[bytes]:
    """Read a job's output files in order.

    Args:
        hold: counts their bytes; the caller closes it once they are sent.

    Raises: Problem: a file is gone or damaged, or too many bytes are in flight.
    """
    contents = []
    for output in job.outputs:
        hold.add(output.bytes)
        contents.append(await front.outputs.read(output))
    return contents
