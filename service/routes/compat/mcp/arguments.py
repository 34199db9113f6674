"""Argument schemas of the MCP tools, which agents read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from service.routes.compat.endpoint import CompatibleRequestBody
from service.schemas.request_parts import LoraRequest


class Arguments(CompatibleRequestBody):
    """Settings of an MCP tool that generates an image or a video."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    prompt: str
    """Description of the image or video."""
    model: str | None = None
    """Name of a model from list_models. Optional if only one model fits."""
    negative_prompt: str | None = None
    """Description of what to avoid. Not every model supports it."""
    width: int | None = None
    """Width in pixels. Default: the model's."""
    height: int | None = None
    """Height in pixels. Default: the model's."""
    num_inference_steps: int | None = None
    """Number of denoising steps. Default: the model's."""
    guidance_scale: float | None = None
    """Guidance scale: how closely to follow the prompt. Default: the model's."""
    seed: int | None = None
    """Random seed; the same seed gives the same result. Default: random, and returned."""
    loras: list[LoraRequest] | None = None
    """Adapters by name, each with its scale."""


class ImageArguments(Arguments):
    """Arguments of the MCP tool generate_image."""

    num_images: int | None = None
    """Number of images. Default: 1."""
    format: Literal["png", "jpeg", "webp"] | None = None
    """Format of the files. Default: png, which is lossless; jpeg and webp are smaller."""


class EditArguments(ImageArguments):
    """Arguments of the MCP tool edit_image."""

    image: str
    """Input image: the id of an earlier job (job_…, with /1 for its second image), a data URI or
    base64."""
    mask_image: str | None = None
    """Mask, in the same forms: white where the image is regenerated. Default: the whole image."""
    strength: float | None = None
    """Strength of the change, up to 1. Default: the model's."""


class VideoArguments(Arguments):
    """Arguments of the MCP tool generate_video."""

    num_frames: int | None = None
    """Number of frames. Default: the model's."""
    fps: int | None = None
    """Frames per second. Default: the model's."""
    image: str | None = None
    """First frame: the id of an earlier job, a data URI or base64."""


class NoArguments(CompatibleRequestBody):
    """Arguments of the MCP tool list_models: none."""


IMAGE_ARGUMENTS = ("image", "mask_image")
"""Arguments that contain an image."""


def fields_of(arguments: Arguments) -> dict[str, Any]:
    """Convert an MCP tool's arguments to the fields of `POST /v1/generate`."""
    fields = arguments.model_dump(exclude_none=True, by_alias=True)
    file_format = fields.pop("format", None)
    return fields | ({"output": {"format": file_format}} if file_format else {})
