"""Stream of OpenAI image events: partial images from a job's previews, then the finished images.

Source: openai-python, src/openai/types/image_gen_stream_event.py, image_edit_stream_event.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict
from redis.exceptions import RedisError

from service.errors.handlers import log
from service.errors.problems import Problem
from service.http.inflight_limits import Hold, slices
from service.http.negotiation import EVENTS
from service.jobs.model.job import Job
from service.jobs.model.previews import is_due
from service.jobs.queue import Event
from service.jobs.storage.errors import StoreError
from service.responses.render import KEEP_ALIVE, job_headers, problem_without_output
from service.responses.wait import events_of
from service.routes.compat.call import Call
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import error_of
from service.routes.compat.openai.image_answers import TokensView, image_properties, tokens_of
from service.routes.compat.outcome import cancel_in_background, read_output_files
from service.schemas.examples import schema_example
from service.schemas.response import View

Kind = Literal["image_generation", "image_edit"]
"""Prefix of the stream's event types."""
GENERATION: Kind = "image_generation"
EDIT: Kind = "image_edit"


class ImageEvent(View):
    """Data of an event, whose SSE `event` field equals `type`."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.EVENT))

    type: str
    """`image_generation.partial_image` or `image_generation.completed`; for edits `image_edit.…`.
    """
    b64_json: str
    """The image in base64."""
    created_at: int
    """Time of the event: seconds since the epoch."""
    size: str
    """Width and height of the finished image."""
    quality: str
    """`low`, `medium` or `high`; `auto` for presets without an OpenAI name."""
    background: Literal["opaque"] = "opaque"
    """Background of the image."""
    output_format: str
    """Format of this file; previews may differ from the finished image."""
    partial_image_index: int | None = None
    """Index of a partial image, from 0."""
    usage: TokensView | None = None
    """Token counts of a finished image."""


@dataclass
class PartialImages:
    """Selection of `max_count` previews, distributed evenly over the steps."""

    max_count: int
    sent: int = 0

    def takes(self, step: int, steps: int) -> bool:
        """Return whether this step's preview is the next partial image, and count it if so."""
        if not is_due(self.max_count, self.sent, step, steps):
            return False
        self.sent += 1
        return True


def stream_response(call: Call, job: Job, kind: Kind, partials: int, waiting: Hold) -> Response:
    """Build the response that streams a job's images.

    Args:
        partials: maximum number of previews.
        waiting: counts the open stream, which takes ownership of it.
    """
    events = _stream(call, job, kind, PartialImages(partials), waiting.transfer())
    headers = job_headers(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type=EVENTS)


async def _stream(
    call: Call, job: Job, kind: Kind, partials: PartialImages, waiting: Hold
) -> AsyncIterator[bytes]:
    front, is_left = call.front, True
    hold = front.bodies.hold(waiting.client)
    try:
        async for event in events_of(front, job.id, "0"):
            if event is None:
                yield KEEP_ALIVE
            elif event.name == "preview" and partials.takes(event.data["step"], job.steps):
                yield _partial_event(job, kind, event, partials.sent - 1)
        is_left = False
        async for message in _final_events(call, job, kind, hold):
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


def _partial_event(job: Job, kind: Kind, event: Event, index: int) -> bytes:
    head, _, data = event.data["preview"].partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    return _serialized(
        ImageEvent(
            type=f"{kind}.partial_image",
            b64_json=data,
            created_at=int(job.created_at),
            partial_image_index=index,
            **image_properties(job) | {"output_format": media_type.partition("/")[2]},
        )
    )


async def _final_events(call: Call, job: Job, kind: Kind, hold: Hold) -> AsyncIterator[bytes]:
    """Yield an event for each image, or an error event."""
    try:
        job = await call.front.job(job.id, job.tenant)
        if not job.state.is_done:
            raise problem_without_output(job)
        contents = await read_output_files(call.front, job, hold)
    except Problem as problem:
        yield _error_event(problem)
        return
    for data in contents:
        yield _completed_event(job, kind, data)


def _completed_event(job: Job, kind: Kind, data: bytes) -> bytes:
    return _serialized(
        ImageEvent(
            type=f"{kind}.completed",
            b64_json=base64.b64encode(data).decode(),
            created_at=int(job.finished_at or job.created_at),
            usage=tokens_of(job, 1),
            **image_properties(job),
        )
    )


def _error_event(problem: Problem) -> bytes:
    """Format the event that OpenAI's SDKs raise as an error."""
    data = json.dumps({"type": "error", "error": error_of(problem)})
    return f"event: error\ndata: {data}\n\n".encode()


def _serialized(event: ImageEvent) -> bytes:
    data: dict[str, Any] = event.model_dump(exclude_none=True)
    return f"event: {event.type}\ndata: {json.dumps(data)}\n\n".encode()
