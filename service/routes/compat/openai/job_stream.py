"""Streams of server-sent events about a job, in the formats of OpenAI's APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import StreamingResponse
from redis.exceptions import RedisError

from service.errors.handlers import log
from service.errors.problems import Problem
from service.http.inflight_limits import Hold, slices
from service.http.negotiation import EVENTS
from service.jobs.model.job import Job
from service.jobs.queue import Event
from service.jobs.storage.errors import StoreError
from service.responses.render import KEEP_ALIVE, job_headers, problem_without_output
from service.responses.wait import events_of
from service.routes.compat.call import Call
from service.routes.compat.outcome import cancel_in_background, read_output_files


class EventFormat(Protocol):
    """Format of a job's streamed events, each serialized to bytes."""

    def begin(self) -> Iterator[bytes]:
        """Yield the stream's events before the job's first step."""

    def preview(self, event: Event) -> Iterator[bytes]:
        """Yield the stream's events of a preview; none if it is not due."""

    def finish(self, job: Job, files: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the stream's events of a successful job with its output files."""

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """Yield the stream's events of a job without outputs."""


def sent_event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Serialize a server-sent event, whose name is `name` if given."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def stream_job(call: Call, job: Job, form: EventFormat, waiting: Hold) -> Response:
    """Build the response that streams a job's events to a client.

    Args:
        waiting: counts the open stream, which takes ownership of it.
    """
    events = _stream(call, job, form, waiting.transfer())
    headers = job_headers(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type=EVENTS)


async def _stream(call: Call, job: Job, form: EventFormat, waiting: Hold) -> AsyncIterator[bytes]:
    front, is_left = call.front, True
    hold = front.bodies.hold(waiting.client)
    try:
        for message in form.begin():
            yield message
        async for event in events_of(front, job.id, "0"):
            if event is None:
                yield KEEP_ALIVE
            elif event.name == "preview":
                for message in form.preview(event):
                    yield message
        is_left = False
        for message in await _final_events(call, job, form, hold):
            for part in slices(message):
                yield part
    except (RedisError, StoreError) as error:
        is_left = False
        log.warning("a stream of %s was interrupted: %s", job.id, error)
    finally:
        hold.close()
        waiting.close()
        if is_left:
            cancel_in_background(call, job)


async def _final_events(call: Call, job: Job, form: EventFormat, hold: Hold) -> Iterator[bytes]:
    """Return the stream's last events: those of the job's outputs, or of its failure."""
    try:
        job = await call.front.job(job.id, job.tenant)
        if not job.state.is_done:
            raise problem_without_output(job)
        contents = await read_output_files(call.front, job, hold)
    except Problem as problem:
        return form.fail(problem)
    return form.finish(job, contents)
