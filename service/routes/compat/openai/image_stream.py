"""Stream of OpenAI image events: partial images from a job's previews, then the finished images.

Source: openai-python, src/openai/types/image_gen_stream_event.py, image_edit_stream_event.py.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import Response
from pydantic import ConfigDict

from models.spec.output_options import Background
from service.errors.problems import Problem
from service.http.inflight_limits import Hold
from service.jobs.model.job import Job
from service.jobs.model.previews import is_due
from service.jobs.queue import Event
from service.routes.compat.call import Call
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import error_of
from service.routes.compat.openai.image_answers import TokensView, image_properties, tokens_of
from service.routes.compat.openai.job_stream import sent_event, stream_job
from service.schemas.examples import schema_example
from service.schemas.response import View

Kind = Literal["image_generation", "image_edit"]
"""Prefix of the stream's event types."""
GENERATION: Kind = "image_generation"
EDIT: Kind = "image_edit"


class ImageEvent(View):
    """Data of an event of OpenAI's image stream; its SSE `event` field equals `type`."""

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
    background: Background = "opaque"
    """Background of the image."""
    output_format: str
    """Format of this file; previews may differ from the finished image."""
    partial_image_index: int | None = None
    """Index of a partial image, from 0."""
    usage: TokensView | None = None
    """Token counts of a finished image."""


@dataclass
class PartialImages:
    """Selection of `max_count` previews of a streamed job, distributed evenly over the steps."""

    max_count: int
    sent: int = 0

    def takes(self, step: int, steps: int) -> bool:
        """Return whether this step's preview is the next partial image, and count it if so."""
        if not is_due(self.max_count, self.sent, step, steps):
            return False
        self.sent += 1
        return True


def stream_response(call: Call, job: Job, kind: Kind, partials: int, waiting: Hold) -> Response:
    """Build the response that streams a job's images as server-sent events.

    Args:
        partials: maximum number of previews.
        waiting: counts the open stream, which takes ownership of it.
    """
    return stream_job(call, job, ImageEvents(job, kind, PartialImages(partials)), waiting)


@dataclass(frozen=True)
class ImageEvents:
    """Events of OpenAI's image API about one streamed job."""

    job: Job
    kind: Kind
    partials: PartialImages

    def begin(self) -> Iterator[bytes]:
        """Yield nothing: the stream begins with the first preview."""
        yield from ()

    def preview(self, event: Event) -> Iterator[bytes]:
        """Yield the event of a partial image, if one is due."""
        if not self.partials.takes(event.data["step"], self.job.steps):
            return
        data, media_type = preview_of(event)
        yield _serialized(
            ImageEvent(
                type=f"{self.kind}.partial_image",
                b64_json=data,
                created_at=int(self.job.created_at),
                partial_image_index=self.partials.sent - 1,
                **image_properties(self.job) | {"output_format": media_type.partition("/")[2]},
            )
        )

    def finish(self, job: Job, files: Sequence[bytes]) -> Iterator[bytes]:
        """Yield an event for each finished image."""
        for data in files:
            yield _serialized(
                ImageEvent(
                    type=f"{self.kind}.completed",
                    b64_json=base64.b64encode(data).decode(),
                    created_at=int(job.finished_at or job.created_at),
                    usage=tokens_of(job, 1),
                    **image_properties(job),
                )
            )

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """Yield the event that OpenAI's SDKs raise as an error."""
        yield sent_event({"type": "error", "error": error_of(problem)}, "error")


def preview_of(event: Event) -> tuple[str, str]:
    """Return a preview's image in base64, and its media type."""
    head, _, data = event.data["preview"].partition(",")
    return data, head.removeprefix("data:").partition(";")[0]


def _serialized(event: ImageEvent) -> bytes:
    return sent_event(event.model_dump(exclude_none=True), event.type)
