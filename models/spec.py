"""What the front end may know of a model. No JAX in here: the front end imports it.

A pool builds the spec from the checkpoint when it starts and registers it in the queue; the front
end validates requests against it and never opens a weight file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Task = Literal["text-to-image", "image-to-image", "inpainting", "text-to-video", "image-to-video"]


class Option(BaseModel):
    """What one option of a scheduler may be, so that a wrong one is refused at the door."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["number", "integer", "boolean", "text"]
    choices: tuple[str, ...] = ()
    """Of a text; empty: any."""
    minimum: float | None = None
    maximum: float | None = None


class Limits(BaseModel):
    """The sizes a model can serve. Settings of the front end may tighten them, never widen."""

    model_config = ConfigDict(frozen=True)

    size_multiple_px: int = Field(gt=0)
    """Width and height must be whole multiples of this."""
    min_side_px: int = Field(gt=0)
    max_side_px: int = Field(gt=0)
    max_pixels: int = Field(gt=0)
    """Of one picture or frame: width times height."""
    max_frames: int = Field(default=1, gt=0)
    frames_multiple: int = Field(default=1, gt=0)
    """`num_frames` is one more than a whole multiple of this."""
    max_steps: int = Field(gt=0)
    max_images: int = Field(gt=0)
    max_sequence_length: int = Field(gt=0)
    """Text tokens that the model's longest encoder takes."""


class ModelSpec(BaseModel):
    """One model as the API sees it."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    tasks: tuple[Task, ...]
    fields: frozenset[str]
    """Names of the request fields that this model serves; any other is refused by name."""
    defaults: Mapping[str, Any]
    """Request fields that the client may leave out, with the value that is then used."""
    task_defaults: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Defaults that differ for one task, by task: they go before `defaults`."""
    sized_by_image: tuple[Task, ...] = ()
    """Tasks whose pictures have the size of the request's, where it names none itself."""
    limits: Limits
    schedulers: Mapping[str, Mapping[str, Option]] = Field(default_factory=dict)
    """Names that the request's `scheduler` may have, each with its options by name; empty: only
    the checkpoint's own."""
    bucket_fields: tuple[str, ...]
    """Request fields that shape the compiled program: equal values may share a batch."""
    fingerprint: str
    """Changes whenever the weights or configs do."""

    def defaults_for(self, task: Task) -> dict[str, Any]:
        """The defaults of a request for that task."""
        return {**self.defaults, **self.task_defaults.get(task, {})}

    def bucket(self, request: Mapping[str, Any]) -> str:
        """What the queue claims together: requests of one size, as one printable key.

        The engine has the last word on what shares a program (`Prepared.bucket`).
        """
        return ",".join(f"{name}={request[name]}" for name in self.bucket_fields)
