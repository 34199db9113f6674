"""Request bodies without their images, which responses keep while a job runs.

The bytes of a body count as in flight until its job is admitted. What is kept for longer must be
small: a queue of waiting requests could otherwise fill the memory.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

MAX_TEXT_CHARS = 2**14
"""Maximum length of a kept text; longer ones are images, or of no use in a response."""

M = TypeVar("M", bound=BaseModel)


def without_images(body: M) -> M:
    """Return a copy of a body whose long texts are empty."""
    return body.model_copy(update={name: _shortened(value) for name, value in body})


def _shortened(value: Any) -> Any:
    match value:
        case str() if len(value) > MAX_TEXT_CHARS:
            return ""
        case dict():
            return {name: _shortened(member) for name, member in value.items()}
        case list():
            return [_shortened(member) for member in value]
        case BaseModel():
            return without_images(value)
    return value
