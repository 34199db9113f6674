"""Answers of OpenAI's chat API with images: whole, and as chunks of a stream.

Source: openai-python, src/openai/types/chat/chat_completion.py, chat_completion_chunk.py;
OpenRouter, Image Generation (`message.images`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict

from service.errors.problems import Problem
from service.jobs.model.job import FieldWarning, Job
from service.jobs.queue import Event
from service.routes.compat.openai import examples
from service.routes.compat.openai.errors import error_of
from service.routes.compat.openai.image_answers import tokens_of
from service.routes.compat.openai.job_stream import sent_event
from service.schemas.examples import schema_example
from service.schemas.response import View

DONE = b"data: [DONE]\n\n"
"""Last event of a stream."""


class ChatImageUrl(View):
    """Address of an image in a chat answer."""

    url: str
    """The file as a data URI."""


class ChatImage(View):
    """Image in the message of a chat's assistant."""

    type: Literal["image_url"] = "image_url"
    """Kind of this object."""
    image_url: ChatImageUrl
    """The image."""


class ChatMessage(View):
    """Message of the assistant in a chat answer, with its images."""

    role: Literal["assistant"] = "assistant"
    """Author of the message."""
    content: str
    """The image in Markdown, as a data URI; empty if `images` has it."""
    images: list[ChatImage] | None = None
    """The image, if the request's `modalities` contain `image`; otherwise absent."""


class ChatChoice(View):
    """Choice of a chat answer: one image of the job."""

    index: int
    """Number of the image, from 0."""
    message: ChatMessage
    """The image as a message."""
    finish_reason: Literal["stop"] = "stop"
    """Always `stop`."""


class ChatUsage(View):
    """Token counts in OpenAI's format: an image token is a square of 16 x 16 pixels."""

    prompt_tokens: int
    """Tokens of the request."""
    completion_tokens: int
    """Tokens of the images."""
    total_tokens: int
    """Sum of both."""


class ChatCompletion(View):
    """Answer to a chat request, in OpenAI's format."""

    model_config = ConfigDict(json_schema_extra=schema_example(examples.COMPLETION))

    id: str
    """Id, which contains the job's."""
    object: Literal["chat.completion"] = "chat.completion"
    """Kind of this object."""
    created: int
    """Time of the request: seconds since the epoch."""
    model: str
    """Name of the model."""
    choices: list[ChatChoice]
    """The images, in order."""
    usage: ChatUsage
    """Token counts."""
    warnings: list[FieldWarning]
    """Fields that were not used as written, or had no effect."""


def to_completion(job: Job, files: Sequence[bytes], *, shows_images: bool) -> ChatCompletion:
    """Convert a successful job to a chat answer.

    Args:
        files: contents of its outputs.
        shows_images: use `message.images` instead of Markdown.
    """
    choices = [
        ChatChoice(index=index, message=ChatMessage(**_content(job, index, data, shows_images)))
        for index, data in enumerate(files)
    ]
    return ChatCompletion(
        id=_id(job),
        created=int(job.created_at),
        model=str(job.request.get("model", job.model)),
        choices=choices,
        usage=_usage(job),
        warnings=job.warnings,
    )


def _id(job: Job) -> str:
    return f"chatcmpl-{job.id}"


def _usage(job: Job) -> ChatUsage:
    tokens = tokens_of(job, len(job.outputs))
    return ChatUsage(
        prompt_tokens=tokens.input_tokens,
        completion_tokens=tokens.output_tokens,
        total_tokens=tokens.total_tokens,
    )


def _content(job: Job, index: int, data: bytes, shows_images: bool) -> dict[str, Any]:
    """Return the members of a chat message, or of a chunk's delta, that contain an image."""
    kind = job.outputs[index].content_type
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    if not shows_images:
        return {"content": f"![image]({url})"}
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"content": "", "images": [image]}


@dataclass(frozen=True)
class ChatEvents:
    """Chunks of a streamed chat answer.

    Args:
        shows_images: use `delta.images` instead of Markdown.
        has_usage: add a chunk with token counts.
    """

    job: Job
    shows_images: bool
    has_usage: bool

    def begin(self) -> Iterator[bytes]:
        """Yield the chunk with the assistant's role, for each choice."""
        for index in range(self.job.images):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def preview(self, event: Event) -> Iterator[bytes]:
        """Yield nothing: chat clients append every chunk to the answer."""
        yield from ()

    def finish(self, job: Job, files: Sequence[bytes]) -> Iterator[bytes]:
        """Yield chunks: each image, the end of its choice, and token counts if requested."""
        for index, data in enumerate(files):
            yield self._chunk(index, _content(job, index, data, self.shows_images))
            yield self._chunk(index, {}, "stop")
        if self.has_usage:
            yield sent_event({**self._head(), "choices": [], "usage": _usage(job).model_dump()})
        yield DONE

    def fail(self, problem: Problem) -> Iterator[bytes]:
        """Yield an error in the form that OpenAI's SDKs raise."""
        yield sent_event({"error": error_of(problem)})

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        return sent_event({**self._head(), "choices": [choice]})

    def _head(self) -> dict[str, Any]:
        job = self.job
        return {
            "id": _id(job),
            "object": "chat.completion.chunk",
            "created": int(job.created_at),
            "model": str(job.request.get("model", job.model)),
        }
