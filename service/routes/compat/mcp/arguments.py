"""Arguments of the tools, from which agents are told what there is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from service.routes.compat.door import DoorBody
from service.schemas.request_parts import LoraRequest


class Arguments(DoorBody):
    """Settings of any image or video."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    prompt: str
    """Description of the image or video."""
    model: str | None = None
    """Name of a model from list_models. May be left out where only one fits."""
    negative_prompt: str | None = None
    """Description of what to avoid. Not every model takes one."""
    width: int | None = None
    """Width in pixels. Default: the model's."""
    height: int | None = None
    """Height in pixels. Default: the model's."""
    num_inference_steps: int | None = None
    """Number of denoising steps. Default: the model's."""
    guidance_scale: float | None = None
    """Guidance scale: how closely to follow the prompt. Default: the model's."""
    seed: int | None = None
    """Random seed; the same one gives the same result. Default: drawn, and told."""
    loras: list[LoraRequest] | None = None
    """Adapters by name, each with its scale."""


class ImageArguments(Arguments):
    """Settings of generate_image."""

    num_images: int | None = None
    """Number of images. Default: 1."""
    format: Literal["png", "jpeg", "webp"] | None = None
    """Format of the files. Default: png, which loses nothing; jpeg and webp are smaller."""


class EditArguments(ImageArguments):
    """Settings of edit_image."""

    image: str
    """Image to start from: the id of an earlier job (job_…, with /1 for its second image), a data
    URI or base64."""
    mask_image: str | None = None
    """Mask, likewise: white where the image is redrawn. Left out: all of it."""
    strength: float | None = None
    """Share of the image to redraw, up to 1. Default: the model's."""


class VideoArguments(Arguments):
    """Settings of generate_video."""

    num_frames: int | None = None
    """Number of frames. Default: the model's."""
    fps: int | None = None
    """Frames per second. Default: the model's."""
    image: str | None = None
    """First frame: the id of an earlier job, a data URI or base64."""


class NoArguments(DoorBody):
    """Settings of list_models: none."""


PICTURES = ("image", "mask_image")
"""Arguments that hold an image."""


def fields_of(given: Arguments) -> dict[str, Any]:
    """Return a tool's arguments in our fields."""
    fields = given.model_dump(exclude_none=True, by_alias=True)
    chosen = fields.pop("format", None)
    return fields | ({"output": {"format": chosen}} if chosen else {})
