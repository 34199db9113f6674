"""Images as a stream of events: partial ones from a job's previews, then the finished ones.

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
from service.responses.render import KEEP_ALIVE, names_of, without_output
from service.responses.wait import events_of
from service.routes.compat.call import Call
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import error_of
from service.routes.compat.openai.image_answers import TokensView, about, tokens_of
from service.routes.compat.outcome import files, leave
from service.schemas.examples import shown
from service.schemas.response import View

Kind = Literal["image_generation", "image_edit"]
"""First part of the names of a stream's events."""
GENERATION: Kind = "image_generation"
EDIT: Kind = "image_edit"


class ImageEvent(View):
    """Data of an event of the stream, whose `event` is its `type`."""

    model_config = ConfigDict(json_schema_extra=shown(examples.EVENT))

    type: str
    """`image_generation.partial_image` or `image_generation.completed`; of edits `image_edit.…`."""
    b64_json: str
    """The image in base64."""
    created_at: int
    """Time of the event: seconds since the epoch."""
    size: str
    """Width and height of the finished image."""
    quality: str
    """`low`, `medium` or `high`; `auto`: a preset that has no name there."""
    background: Literal["opaque"] = "opaque"
    """Background of the image."""
    output_format: str
    """Format of this file: previews have their own."""
    partial_image_index: int | None = None
    """Number of a partial image, from 0."""
    usage: TokensView | None = None
    """Size of a finished image."""


@dataclass
class Partials:
    """Choice of previews: `wanted` of them, spread evenly over the steps."""

    wanted: int
    taken: int = 0

    def takes(self, step: int, steps: int) -> bool:
        """Return whether the preview of that step is the next partial image; count it if so."""
        if not is_due(self.wanted, self.taken, step, steps):
            return False
        self.taken += 1
        return True


def stream_answer(call: Call, job: Job, kind: Kind, partials: int, waiting: Hold) -> Response:
    """Return a job's images as a stream.

    Args:
        partials: number of previews that are wanted.
        waiting: counts the stream, which takes it over.
    """
    events = _stream(call, job, kind, Partials(partials), waiting.pass_on())
    headers = names_of(job) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type=EVENTS)


async def _stream(
    call: Call, job: Job, kind: Kind, partials: Partials, waiting: Hold
) -> AsyncIterator[bytes]:
    front, is_left = call.front, True
    hold = front.bodies.hold(waiting.client)
    try:
        async for event in events_of(front, job.id, "0"):
            if event is None:
                yield KEEP_ALIVE
            elif event.name == "preview" and partials.takes(event.data["step"], job.steps):
                yield _partial(job, kind, event, partials.taken - 1)
        is_left = False
        async for message in _finished(call, job, kind, hold):
            for part in slices(message):
                yield part
    except (RedisError, StoreError) as error:
        is_left = False
        log.warning("a stream of %s broke off: %s", job.id, error)
    finally:
        hold.close()
        waiting.close()
        if is_left:
            leave(call, job)


def _partial(job: Job, kind: Kind, event: Event, index: int) -> bytes:
    head, _, data = event.data["preview"].partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    return _written(
        ImageEvent(
            type=f"{kind}.partial_image",
            b64_json=data,
            created_at=int(job.created_at),
            partial_image_index=index,
            **about(job) | {"output_format": media_type.partition("/")[2]},
        )
    )


async def _finished(call: Call, job: Job, kind: Kind, hold: Hold) -> AsyncIterator[bytes]:
    """Yield an event of each image, or one of the error."""
    try:
        job = await call.front.job(job.id, job.tenant)
        if not job.state.is_done:
            raise without_output(job)
        found = await files(call.front, job, hold)
    except Problem as problem:
        yield _failed(problem)
        return
    for data in found:
        yield _completed(job, kind, data)


def _completed(job: Job, kind: Kind, data: bytes) -> bytes:
    return _written(
        ImageEvent(
            type=f"{kind}.completed",
            b64_json=base64.b64encode(data).decode(),
            created_at=int(job.finished_at or job.created_at),
            usage=tokens_of(job, 1),
            **about(job),
        )
    )


def _failed(problem: Problem) -> bytes:
    """Return the event that the SDKs raise as an error."""
    data = json.dumps({"type": "error", "error": error_of(problem)})
    return f"event: error\ndata: {data}\n\n".encode()


def _written(event: ImageEvent) -> bytes:
    data: dict[str, Any] = event.model_dump(exclude_none=True)
    return f"event: {event.type}\ndata: {json.dumps(data)}\n\n".encode()
