"""Requests of OpenAI's Responses API with the tool `image_generation`, as image requests.

Source: openai-python, src/openai/types/responses/response_create_params.py, tool.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from service.admission.input_files import is_url
from service.admission.parse import parse_as
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.openai import examples
from service.routes.compat.openai.chat_requests import FIELDS, given_fields, without_effect
from service.routes.compat.openai.conversations import Conversation, read_conversation
from service.routes.compat.openai.image_requests import MAX_PARTIAL_IMAGES, ImageRequest
from service.schemas.examples import schema_example

TOOL = "image_generation"
CALL = "image_generation_call"
"""Type of the output items, which requests may contain as input images."""
INPUT = "input"
NO_TOOL = f'must contain {{"type": "{TOOL}"}}: this server generates images, and no text'
REFUSED: Mapping[str, str] = {
    "previous_response_id": "is not supported: responses are not stored; send the conversation",
    "conversation": "is not supported: conversations are not stored; send the messages as input",
    "prompt": "templates are not supported; send the prompt as input",
    "background": "is not supported; POST /v1/generate queues a request",
}
"""Message by field that would change what is generated or returned."""
_RESULTLESS = "must have its result, the image in base64: responses are not stored"


class ImageTool(CompatibleRequestBody):
    """Tool `image_generation` of OpenAI's Responses API; others are ignored, with a warning."""

    model_config = ConfigDict(extra="allow")

    type: str
    """Kind of the tool."""
    model: str | None = None
    """Name of a model, with precedence over the request's `model`."""
    partial_images: Annotated[int, Field(ge=0, le=MAX_PARTIAL_IMAGES)] | None = None
    """Number of previews in a stream. Fast jobs may send fewer."""
    input_image_mask: Any = None
    """Rejected: use `POST /v1/images/edits`."""


class ResponseRequest(CompatibleRequestBody):
    """Request of OpenAI's Responses API for an image.

    Fields of `images.generate` and of `POST /v1/generate` may be added to the tool. Fields for
    language models are accepted without effect, with a warning.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=schema_example(examples.RESPOND))

    input: Any
    """Prompt, or messages of which the last with the role `user` is the prompt. Its images, and
    the `result` of the last item of the type `image_generation_call`, are input images."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. Optional if only one model is served."""
    tools: list[dict[str, Any]]
    """Tools; `image_generation` is required."""
    stream: bool | None = None
    """Respond with server-sent events."""
    previous_response_id: str | None = None
    """Rejected: responses are not stored."""

    def tool(self) -> ImageTool:
        """Return the request's tool `image_generation`. Raises: Invalid: absent or invalid."""
        for index, tool in enumerate(self.tools):
            if tool.get("type") == TOOL:
                return _parsed_tool(tool, f"tools.{index}")
        raise Invalid([FieldError("tools", NO_TOOL)])

    def conversation(self) -> Conversation:
        """Return the request's prompt and input images. Raises: Invalid."""
        if not isinstance(self.input, str | list):
            raise Invalid([FieldError(INPUT, "must be a text or a list of messages")])
        if isinstance(self.input, str):
            return read_conversation([{"role": "user", "content": self.input}], INPUT)
        conversation = read_conversation(self.input, INPUT)
        *_, last_result = (None, *_results(self.input))
        images = conversation.images if last_result is None else (*conversation.images, last_result)
        return Conversation(conversation.prompt, images, conversation.warnings)


def _parsed_tool(tool: Mapping[str, Any], path: str) -> ImageTool:
    try:
        return parse_as(ImageTool, tool)
    except Invalid as problem:
        errors = [FieldError(f"{path}.{error.field}", error.message) for error in problem.errors]
        raise Invalid(errors) from None


def _results(items: Sequence[Any]) -> Iterator[str]:
    """Yield the images of earlier image generation calls. Raises: Invalid: one has no image."""
    for index, item in enumerate(items):
        if isinstance(item, Mapping) and item.get("type") == CALL:
            result = item.get("result")
            if not isinstance(result, str) or not result or is_url(result):
                raise Invalid([FieldError(f"{INPUT}.{index}.result", _RESULTLESS)])
            yield result


def to_image_request(body: ResponseRequest, prompt: str, model: str | None) -> ImageRequest:
    """Convert a request of the Responses API to an image request for a model. Raises: Invalid."""
    if errors := [*_refused(body)]:
        raise Invalid(errors)
    tool = body.tool()
    extra = given_fields(body.model_extra, FIELDS - REFUSED.keys())
    extra |= given_fields(tool.model_extra, FIELDS)
    given = {
        "model": model,
        "stream": body.stream,
        "partial_images": tool.partial_images if body.stream else None,
    }
    present = {name: value for name, value in given.items() if value is not None}
    return parse_as(ImageRequest, {"prompt": prompt, **present, **extra})


def _refused(body: ResponseRequest) -> Iterator[FieldError]:
    given = {"previous_response_id": body.previous_response_id, **(body.model_extra or {})}
    for name, message in REFUSED.items():
        if given.get(name):
            yield FieldError(name, message)
    if body.tool().input_image_mask is not None:
        yield FieldError("tools.input_image_mask", "is not supported; use POST /v1/images/edits")


def ignored_fields(body: ResponseRequest) -> Iterator[FieldWarning]:
    """Yield a warning for each field that only language models read, and for other tools."""
    tool = body.tool()
    if any(other.get("type") != TOOL for other in body.tools):
        message = f"only {TOOL} has an effect: this server generates images, and no text"
        yield FieldWarning(field="tools", message=message)
    if tool.partial_images and not body.stream:
        message = "has no effect without stream: true"
        yield FieldWarning(field="tools.partial_images", message=message)
    yield from without_effect(tool.model_extra, FIELDS)
    yield from without_effect(body.model_extra, FIELDS | REFUSED.keys())
