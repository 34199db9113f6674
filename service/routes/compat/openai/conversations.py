"""Conversations of OpenAI's APIs: the last user message as a prompt with input images.

Source: openai-python, src/openai/types/chat/chat_completion_content_part_param.py and
src/openai/types/responses/response_input_item_param.py; anthropic-sdk-python,
src/anthropic/types/image_block_param.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.jobs.model.job import FieldWarning
from service.routes.compat.endpoint import lowered
from service.schemas.request_parts import MAX_LISTED_IMAGES

Item = Mapping[str, Any]

TEXTS = ("text", "input_text")
IMAGES = ("image_url", "input_image", "image")
"""Types of the parts of a message's content."""
EARLIER = "only the last user message is read; earlier messages have no effect"
INSTRUCTIONS = "instructions to the model have no effect; describe the image in the prompt"


@dataclass(frozen=True)
class Conversation:
    """Prompt and images that a conversation asks for.

    Args:
        images: input images of the last user message, each a data URI or a URL.
        warnings: about the other messages.
    """

    prompt: str
    images: tuple[str, ...]
    warnings: tuple[FieldWarning, ...]


def read_conversation(messages: Sequence[Any], path: str) -> Conversation:
    """Read prompt and images from the last user message of a conversation.

    Args:
        path: field of the messages, for errors.

    Raises: Invalid: there is no such message, or it has a part that no model here reads.
    """
    numbered = [(index, message) for index, message in enumerate(messages) if _is_message(message)]
    users = [(index, message) for index, message in numbered if _role(message) == "user"]
    if not users:
        raise Invalid([FieldError(path, "must have a message with the role user")])
    index, last = users[-1]
    parts = [*_parts(last.get("content"), f"{path}.{index}.content")]
    prompt = "\n".join(text for kind, text in parts if kind == "text").strip()
    images = tuple(url for kind, url in parts if kind == "image")
    if not prompt and not images:
        raise Invalid([FieldError(f"{path}.{index}.content", "must have a text: the prompt")])
    if len(images) > MAX_LISTED_IMAGES:
        message = f"must have at most {MAX_LISTED_IMAGES} images"
        raise Invalid([FieldError(f"{path}.{index}.content", message)])
    return Conversation(prompt, images, tuple(_warnings(numbered, len(users), path)))


def _role(message: Item) -> Any:
    return lowered(message.get("role"))


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type", "message") == "message"


def _parts(content: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the texts and images of a message's content by kind. Raises: Invalid."""
    if isinstance(content, str):
        yield "text", content
        return
    content = [content] if isinstance(content, Mapping) else content
    if not isinstance(content, list):
        raise Invalid([FieldError(path, "must be a text or a list of parts")])
    for index, part in enumerate(content):
        yield _part(part, f"{path}.{index}")


def _part(part: Any, path: str) -> tuple[str, str]:
    """Read a part of a message's content. Raises: Invalid."""
    if isinstance(part, str):
        return "text", part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in TEXTS and isinstance(part.get("text"), str):
        return "text", part["text"]
    if kind in IMAGES:
        return "image", _image_url(part, path)
    message = "must be a text or an image: {type: text, text} or {type: image_url, image_url}"
    raise Invalid([FieldError(path, message)])


def _image_url(part: Item, path: str) -> str:
    """Return an image's data URI or URL, also in the forms of Anthropic's and Qwen's APIs.

    Raises: Invalid: it refers to an uploaded file.
    """
    image = part.get("image_url") or part.get("image") or part.get("source")
    url = (image.get("url") or image.get("data")) if isinstance(image, Mapping) else image
    if isinstance(url, str) and url:
        return url
    message = "must be a data URI or a URL; uploaded files cannot be referenced"
    raise Invalid([FieldError(f"{path}.image_url", message)])


def _warnings(
    messages: Sequence[tuple[int, Item]], users: int, path: str
) -> Iterator[FieldWarning]:
    roles = [_role(message) for _, message in messages]
    if "system" in roles or "developer" in roles:
        yield FieldWarning(field=path, message=INSTRUCTIONS)
    if users > 1:
        yield FieldWarning(field=path, message=EARLIER)
