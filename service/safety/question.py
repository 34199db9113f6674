"""Question to the safety hook: a request with its input images, or an output with its pixels."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

When = Literal["before", "after"]


@dataclass(frozen=True)
class ShownImage:
    """Image file that the hook is shown."""

    field: str
    """Field of the request that it came with, or `output`."""
    content_type: str
    data: bytes
    frame: int | None = None
    """Number of the frame, of an output video."""

    def members(self) -> dict[str, Any]:
        """Return its members as the function gets them."""
        return dict(vars(self))


@dataclass(frozen=True)
class Question:
    """Question about one request, or about one image or video that it made."""

    when: When
    tenant: str
    model: str
    request: Mapping[str, Any]
    """Resolved fields of the request, without its images."""
    images: tuple[ShownImage, ...] = ()
    job: str | None = None
    """Id of the job, of an output."""
    index: int | None = None
    """Number of the image or video in the job, of an output."""

    def members(self) -> dict[str, Any]:
        """Return the question as the function gets it: images as bytes."""
        return {**vars(self), "images": [image.members() for image in self.images]}

    def body(self) -> bytes:
        """Return the question as the service gets it: JSON, images in base64."""
        images = [
            {**image.members(), "data": base64.b64encode(image.data).decode()}
            for image in self.images
        ]
        return json.dumps({**self.members(), "images": images}).encode()
