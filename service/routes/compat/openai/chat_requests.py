"""Requests of OpenAI's chat API for images, and their conversion to image requests.

Source: openai-python, src/openai/types/chat/completion_create_params.py; OpenRouter, Image
Generation (`modalities`, `image_config`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

from models.spec.model_spec import ModelSpec
from service.admission.parse import parse_as
from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.endpoint import CompatibleRequestBody, listed, lowered
from service.routes.compat.names import FieldNames
from service.routes.compat.nearest_size import size_of_ratio
from service.routes.compat.openai import examples
from service.routes.compat.openai.extra_fields import OpenAIBody
from service.routes.compat.openai.image_requests import ImageRequest
from service.schemas.examples import schema_example
from service.schemas.request import GenerateRequest
from service.schemas.request_parts import MAX_LISTED_IMAGES
from service.schemas.unknown_fields import ALIASES
from service.settings.limits import LimitSettings

NO_EFFECT = "has no effect on images"
MAX_WARNINGS = 32
"""Maximum number of fields without effect that are named."""
MAX_FIELD_CHARS = 80
OF_MESSAGE = "has no effect; the last user message has the prompt and the input images"
_OWN = frozenset({"prompt", "model", "stream", "response_format", "image", "partial_images"})
FIELDS = frozenset({*ImageRequest.model_fields, *GenerateRequest.model_fields, "aspect_ratio"})
FIELDS -= _OWN
"""Fields of other endpoints that a conversation's request may have in addition."""


class StreamOptions(CompatibleRequestBody):
    """Options of a streamed chat answer."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None
    """Adds a chunk with token counts at the end."""


class ImageConfig(CompatibleRequestBody):
    """Properties of a chat's image, as in OpenRouter's API."""

    model_config = ConfigDict(extra="ignore")

    aspect_ratio: str | None = None
    """Width to height, such as `16:9`: selects the model's closest size."""
    image_size: str | None = None
    """Accepted without effect, with a warning: `size` sets width and height in pixels."""


class ChatRequest(OpenAIBody):
    """Chat request whose answer is an image.

    Fields of `images.generate` and of `POST /v1/generate` may be added. Fields for language models
    are accepted without effect, with a warning.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=schema_example(examples.CHAT))

    messages: list[Any]
    """The last message with the role `user` is the prompt. Its images are input images, if the
    model accepts any; each is a data URI, or an http(s) URL if the server allows it."""
    model: str | None = None
    """Name of a model from `GET /v1/models`. Optional if only one model is served."""
    modalities: Annotated[list[str], BeforeValidator(listed)] | None = None
    """Kinds of output: with `image` the answer has `message.images`; otherwise its content is a
    Markdown image."""
    n: int | None = None
    """Number of images; each is a choice. Default: 1."""
    stream: bool | None = None
    """Respond with server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""
    image_config: ImageConfig | None = None
    """Properties of the image."""

    @property
    def shows_images(self) -> bool:
        """Return whether the answer has `message.images`."""
        return "image" in map(lowered, self.modalities or ())


def to_image_request(
    body: ChatRequest, prompt: str, spec: ModelSpec, limits: LimitSettings
) -> ImageRequest:
    """Convert a chat request to an image request. Raises: Invalid."""
    if "audio" in (body.modalities or ()):
        raise Invalid([FieldError("modalities", "audio is not supported; send image and text")])
    extra = given_fields(body.model_extra, FIELDS)
    size = {} if "size" in extra else _size(body.image_config, spec, limits)
    given = {"n": body.n, "stream": body.stream, "model": body.model}
    present = {name: value for name, value in given.items() if value is not None}
    return parse_as(ImageRequest, {"prompt": prompt, **present, **size, **extra})


def _size(config: ImageConfig | None, spec: ModelSpec, limits: LimitSettings) -> dict[str, str]:
    """Return the size with an aspect ratio that is closest to the model's own. Raises: Invalid."""
    ratio = config and config.aspect_ratio
    size = size_of_ratio(spec, limits, ratio, "image_config.aspect_ratio")
    return {"size": "{}x{}".format(*size)} if size else {}


def ignored_fields(body: ChatRequest) -> Iterator[FieldWarning]:
    """Yield a warning for each field of a chat request that only language models read."""
    config = body.image_config
    if config is not None and config.image_size is not None:
        message = "has no effect; size sets width and height in pixels"
        yield FieldWarning(field="image_config.image_size", message=message)
    yield from without_effect(body.model_extra, FIELDS)


def given_fields(extra: Mapping[str, Any] | None, names: Set[str]) -> dict[str, Any]:
    """Select the additional request fields of these names that are not null."""
    given = (extra or {}).items()
    return {name: value for name, value in given if name in names and value is not None}


def without_effect(extra: Mapping[str, Any] | None, read: Set[str]) -> Iterator[FieldWarning]:
    """Yield a warning for each additional request field that is given but not read."""
    for name, value in [*(extra or {}).items()][:MAX_WARNINGS]:
        if name not in read and value is not None:
            yield FieldWarning(field=name[:MAX_FIELD_CHARS], message=_no_effect(name, read))


def _no_effect(name: str, read: Set[str]) -> str:
    """Return the warning about a field that is not read, with the field of its meaning, if any."""
    if name in ("prompt", "image", "images", "image_url"):
        return OF_MESSAGE
    suggestion = "" if name in _OWN else ALIASES[""].get(name, "")
    is_read = any(suggestion.startswith(field) for field in read)
    return f"has no effect; did you mean {suggestion}?" if is_read else NO_EFFECT


def names_in(path: str) -> FieldNames:
    """Return the names of converted fields in a conversation, for errors.

    Args:
        path: field of the conversation's messages.
    """
    images = {f"reference_images.{number}": path for number in range(MAX_LISTED_IMAGES)}
    fields = ("prompt", "image", "reference_images", "mask_image", "mask")
    return FieldNames({**dict.fromkeys(fields, path), **images})
