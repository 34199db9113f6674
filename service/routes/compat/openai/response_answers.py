"""Answers of OpenAI's Responses API with images: whole, and as events of a stream.

Source: openai-python, src/openai/types/responses/response.py, response_output_item.py, and the
events response_image_gen_call_*_event.py.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from pydantic import ConfigDict

from models.spec.output_options import Background
from service.errors.problems import Problem
from service.jobs.model.job import FieldWarning, Job
from service.jobs.queue import Event
from service.routes.compat.endpoint import code_of
from service.routes.compat.openai import examples
from service.routes.compat.openai.image_answers import image_properties, tokens_of
from service.routes.compat.openai.image_stream import PartialImages, preview_of
from service.routes.compat.openai.job_stream import sent_event
from service.routes.compat.openai.response_requests import CALL, TOOL
from service.schemas.examples import schema_example
from service.schemas.response import View

ItemStatus = Literal["in_progress", "generating", "completed", "failed"]
ResponseStatus = Literal["in_progress", "completed", "failed"]


class ImageCallView(View):
    """Output item of OpenAI's Responses API: one image of the job."""

    id: str
    """Id, which contains the job's."""
    type: Literal["image_generation_call"] = "image_generation_call"
    """Kind of this object."""
    status: ItemStatus
    """State of the image."""
    result: str | None = None
    """The file in base64, once it is complete."""
    background: Background = "opaque"
    """Background of the image."""
    output_format: str
    """Format of the file."""
    quality: str
    """`low`, `medium` or `high`; `auto` for presets without an OpenAI name."""
    size: str
    """Width and height in pixels."""


class ResponseErrorView(View):
    """Reason of a failed response, in OpenAI's format."""

    code: str
    """Kind of the error, for programs."""
    message: str
    """Message: what happened and what to do."""


class ResponseUsageView(View):
    """Token counts in OpenAI's format: an image token is a square of 16 x 16 pixels."""

    input_tokens: int
    """Tokens of the request."""
    input_tokens_details: dict[str, int]
    """Always without cached tokens."""
    output_tokens: int
    """Tokens of the images."""
    output_tokens_details: dict[str, int]
    """Always without reasoning tokens."""
    total_tokens: int
    """Sum of both."""


class ResponseView(View):
    """Response of OpenAI's Responses API whose output items are images."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.RESPONSE))

    id: str
    """Id, which contains the job's. Responses are not stored under it."""
    object: Literal["response"] = "response"
    """Kind of this object."""
    created_at: int
    """Time of the request: seconds since the epoch."""
    status: ResponseStatus
    """State of the response."""
    error: ResponseErrorView | None = None
    """Reason of a failure."""
    incomplete_details: None = None
    """Always null."""
    instructions: None = None
    """Always null."""
    metadata: dict[str, str]
    """Metadata of the job."""
    model: str
    """Name of the model."""
    output: list[ImageCallView]
    """The images, in order."""
    parallel_tool_calls: bool = False
    """Always false."""
    previous_response_id: None = None
    """Always null."""
    store: bool = False
    """Always false."""
    temperature: None = None
    """Always null."""
    tool_choice: Literal["auto"] = "auto"
    """Always `auto`."""
    tools: list[dict[str, str]]
    """The tool `image_generation`."""
    top_p: None = None
    """Always null."""
    usage: ResponseUsageView | None = None
    """Token counts of a completed response."""
    warnings: list[FieldWarning]
    """Fields that were not used as written, or had no effect."""


def to_response(job: Job, files: Sequence[bytes]) -> ResponseView:
    """Convert a successful job with its files to OpenAI's Responses API."""
    items = [_item(job, index, "completed", data) for index, data in enumerate(files)]
    tokens = tokens_of(job, len(files))
    usage = ResponseUsageView(
        input_tokens=tokens.input_tokens,
        input_tokens_details={"cached_tokens": 0},
        output_tokens=tokens.output_tokens,
        output_tokens_details={"reasoning_tokens": 0},
        total_tokens=tokens.total_tokens,
    )
    return _response(job, "completed", items).model_copy(update={"usage": usage})


def _response(
    job: Job, status: ResponseStatus, items: Sequence[ImageCallView] = ()
) -> ResponseView:
    return ResponseView(
        id=f"resp_{job.id}",
        created_at=int(job.created_at),
        status=status,
        metadata=job.metadata,
        model=str(job.request.get("model", job.model)),
        output=list(items),
        tools=[{"type": TOOL}],
        warnings=job.warnings,
    )


def _item(job: Job, index: int, status: ItemStatus, data: bytes | None = None) -> ImageCallView:
    result = None if data is None else base64.b64encode(data).decode()
    return ImageCallView(
        id=f"ig_{job.id}_{index}", status=status, result=result, **image_properties(job)
    )


@dataclass(frozen=True)
class ResponseEvents:
    """Events of a streamed response (OpenAI's Responses API), numbered in order.

    Args:
        partials: selection of previews, which show the job's first unfinished image.
    """

    job: Job
    partials: PartialImages
    _numbers: Iterator[int] = field(default_factory=count)

    def begin(self) -> Iterator[bytes]:
        """Yield the events of the response and its items in progress."""
        body = _response(self.job, "in_progress").model_dump()
        yield self._event("response.created", response=body)
        yield self._event("response.in_progress", response=body)
        for index in range(self.job.images):
            item = _item(self.job, index, "in_progress").model_dump()
            yield self._event("response.output_item.added", output_index=index, item=item)
            yield self._of_item(index, "in_progress")
            yield self._of_item(index, "generating")

    def preview(self, event: Event) -> Iterator[bytes]:
        """Yield the event of a partial image, if one is due."""
        if not self.partials.takes(event.data["step"], self.job.steps):
            return
        data, media_type = preview_of(event)
        about = image_properties(self.job) | {"output_format": media_type.partition("/")[2]}
        number = self.partials.sent - 1
        yield self._of_item(
            0, "partial_image", partial_image_index=number, partial_image_b64=data, **about
        )

    def finish(self, job: Job, files: Sequence[bytes]) -> Iterator[bytes]:
        """Yield events of each finished image, then of the whole response."""
        response = to_response(job, files)
        for index, item in enumerate(response.output):
            yield self._of_item(index, "completed")
            yield self._event(
                "response.output_item.done", output_index=index, item=item.model_dump()
            )
        yield self._event("response.completed", response=response.model_dump())

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """Yield the event of a failed response."""
        error = ResponseErrorView(code=code_of(problem), message=problem.detail)
        failed = _response(self.job, "failed").model_copy(update={"error": error})
        yield self._event("response.failed", response=failed.model_dump())

    def _of_item(self, index: int, state: str, **members: Any) -> bytes:
        item_id = _item(self.job, index, "in_progress").id
        name = f"response.{CALL}.{state}"
        return self._event(name, output_index=index, item_id=item_id, **members)

    def _event(self, name: str, **members: Any) -> bytes:
        data: Mapping[str, Any] = {"type": name, "sequence_number": next(self._numbers), **members}
        return sent_event(data, name)
