"""Input of a safety check: a request with its input images, or an output with its pixels."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

When = Literal["before", "after"]


@dataclass(frozen=True)
class ShownImage:
    """Image file that the safety hook checks."""

    field: str
    """Field of the request that contains it, or `output`."""
    content_type: str
    data: bytes
    frame: int | None = None
    """Frame number, for an output video."""

    def members(self) -> dict[str, Any]:
        """Convert to the dictionary that the hook's function receives."""
        return dict(vars(self))


@dataclass(frozen=True)
class SafetyCheck:
    """Safety check of one request, or of one generated image or video."""

    when: When
    tenant: str
    model: str
    request: Mapping[str, Any]
    """Resolved fields of the request, without its images."""
    images: tuple[ShownImage, ...] = ()
    job: str | None = None
    """Id of the job, for an output."""
    index: int | None = None
    """Index of the image or video in the job, for an output."""

    def members(self) -> dict[str, Any]:
        """Convert to the dictionary that the hook's function receives, with images as bytes."""
        return {**vars(self), "images": [image.members() for image in self.images]}

    def body(self) -> bytes:
        """Serialize to the body that the hook's service receives: JSON, with images in base64."""
        images = [
            {**image.members(), "data": base64.b64encode(image.data).decode()}
            for image in self.images
        ]
        return json.dumps({**self.members(), "images": images}).encode()
