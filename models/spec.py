"""What the front end may know of a model. No JAX in here: the front end imports it.

A pool builds the spec from the checkpoint when it starts and registers it in the queue; the front
end validates requests against it and never opens a weight file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.quality import EXACT, Quality

Task = Literal["text-to-image", "image-to-image", "inpainting", "text-to-video", "image-to-video"]
PICTURE_FIELDS = ("image", "mask_image", "last_image")
"""Request fields that hold a picture; the store keeps it and the job its key."""


class Option(BaseModel):
    """What one option of a scheduler may be, so that a wrong one is refused at the door."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["number", "integer", "boolean", "text"]
    choices: tuple[str, ...] = ()
    """Of a text; empty: any."""
    minimum: float | None = None
    maximum: float | None = None
    excludes: tuple[str, ...] = ()
    """Options that may not be true beside this one."""


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
    min_frames: int = Field(default=1, gt=0)
    frames_multiple: int = Field(default=1, gt=0)
    """`num_frames` is `min_frames` more than a whole multiple of this."""
    max_steps: int = Field(gt=0)
    max_images: int = Field(gt=0)
    max_sequence_length: int = Field(gt=0)
    """Text tokens that the model's longest encoder takes."""
    max_clip_skip: int = Field(default=100, ge=0)
    """One less than the layers of the model's shallowest CLIP encoder."""


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
    needed: frozenset[str] = frozenset()
    """Fields that every request has to set, beside the pictures of its task."""
    strength_rounds: Literal["down", "up"] = "up"
    """How the share of the steps that `strength` runs becomes whole, as in diffusers' pipelines of
    the family."""
    sized_by_image: tuple[Task, ...] = ()
    """Tasks whose pictures have the size of the request's, where it names none itself."""
    limits: Limits
    schedulers: Mapping[str, Mapping[str, Option]] = Field(default_factory=dict)
    """Names that the request's `scheduler` may have, each with its options by name; empty: only
    the checkpoint's own."""
    scheduler: str = ""
    """Of those names, the one of the checkpoint's own."""
    step_lists: Mapping[str, frozenset[str]] = Field(default_factory=dict)
    """By those names, which of `timesteps` and `sigmas` a request may set beside; one that is not
    here takes both."""
    sigmas_are: Literal["of steps", "noise levels"] = "of steps"
    """How `sigmas` read: one a step, of a flow, at most 1 and above 0; or noise over signal, where
    the last is no step but where the last one leads, usually 0."""
    qualities: Mapping[str, Quality] = Field(default_factory=dict)
    """Presets that the request's `quality` may name, beside `exact`."""
    has_exact: bool = True
    """Whether `exact` is to be had: not where all of a network's blocks are of 8 bits."""
    bucket_fields: tuple[str, ...]
    """Request fields that shape the compiled program: equal values may share a batch."""
    fingerprint: str
    """Changes whenever the weights or configs do."""

    @property
    def quality_names(self) -> tuple[str, ...]:
        """What the request's `quality` may be."""
        return (*[EXACT] * self.has_exact, *self.qualities)

    def defaults_for(self, task: Task) -> dict[str, Any]:
        """The defaults of a request for that task."""
        return {**self.defaults, **self.task_defaults.get(task, {})}

    def bucket(self, request: Mapping[str, Any]) -> str:
        """What the queue claims together: requests of one size, as one printable key.

        The engine has the last word on what shares a program (`Prepared.bucket`).
        """
        # A job of an earlier version lacks fields that came later; without a quality it is exact.
        told = {**self.defaults, "quality": EXACT, **request}
        return ",".join(f"{name}={told.get(name)}" for name in self.bucket_fields)
