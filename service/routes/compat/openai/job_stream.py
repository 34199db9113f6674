"""Streams of server-sent events about a job, in the formats of OpenAI's APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import StreamingResponse
from redis.exceptions import RedisError
from starlette.types import Receive, Scope, Send

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
    return _JobStream(call, job, form, waiting.transfer())


class _JobStream(StreamingResponse):
    """Stream of a job's events, which cancels the job if the client leaves.

    Not in a `finally` of the events: those of a client that has left before the first are not
    begun, and a generator that is not begun does not run it.
    """

    def __init__(self, call: Call, job: Job, form: EventFormat, waiting: Hold) -> None:
        self._call, self._job, self._form = call, job, form
        self._waiting = waiting
        self._is_left = True
        headers = job_headers(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(self._events(), headers=headers, media_type=EVENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the events until the job ends or the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._waiting.close()
            if self._is_left:
                cancel_in_background(self._call, self._job)

    async def _events(self) -> AsyncIterator[bytes]:
        call, job, form = self._call, self._job, self._form
        hold = call.front.bodies.hold(self._waiting.client)
        try:
            for message in form.begin():
                yield message
            async for event in events_of(call.front, job.id, "0"):
                if event is None:
                    yield KEEP_ALIVE
                elif event.name == "preview":
                    for message in form.preview(event):
                        yield message
            self._is_left = False
            for message in await _final_events(call, job, form, hold):
                for part in slices(message):
                    yield part
        except (RedisError, StoreError) as error:
            self._is_left = False
            log.warning("a stream of %s was interrupted: %s", job.id, error)
        finally:
            hold.close()


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
