"""Validation errors of a body, with suggestions for misspelt or foreign field names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from service.errors.did_you_mean import did_you_mean
from service.errors.handlers import NO_FIELD, field_errors
from service.errors.problems import MAX_ERRORS, FieldError, path_of
from service.schemas.request import GenerateRequest

Location = Sequence[str | int]

_SIZE = "width and height"
_LENGTH = "num_frames and fps"
SHAPES: Mapping[str, str] = {
    "scheduler": '{"name": "euler"}',
    "loras": '{"name": "…", "scale": 1.0}',
    "control": '{"name": "…", "image": "…"}',
    "image_prompts": '{"image": "…"}',
    "upscale": '{"name": "…", "scale": 2}',
    "hires": '{"scale": 2}',
    "output": '{"format": "png"}',
    "webhook": '{"url": "https://…"}',
}
"""Examples of the objects in a request, by field."""

_SCHEDULER = f"scheduler, such as {SHAPES['scheduler']}"
_LORAS = f"loras, such as [{SHAPES['loras']}]"
_CONTROL = f"control, such as [{SHAPES['control']}]"
_IMAGE_PROMPTS = f"image_prompts, such as [{SHAPES['image_prompts']}]"

_UPSCALE = f"upscale, such as {SHAPES['upscale']}"
_HIRES = f"hires, such as {SHAPES['hires']}"

_GENERATE = {
    # OpenAI and compatible APIs
    "n": "num_images",
    "size": _SIZE,
    "aspect_ratio": _SIZE,
    "resolution": _SIZE,
    "response_format": "output.inline, or the Accept header",
    "output_format": "output.format",
    "output_quality": "output.quality",
    "output_compression": "output.quality",
    "format": "output.format",
    "mask": "mask_image",
    "video": "control_video",
    "video_url": "control_video",
    "src_video": "control_video",
    "src_mask": "mask_video",
    "src_ref_images": "reference_images",
    "context_scale": "conditioning_scale",
    "seconds": _LENGTH,
    "duration": _LENGTH,
    "user": "metadata",
    "stream": "the header Accept: text/event-stream",
    "model_name": "model",
    "model_id": "model",
    "input": "prompt",
    "inputs": "prompt",
    "text": "prompt",
    # AUTOMATIC1111 and ComfyUI
    "steps": "num_inference_steps",
    "sample_steps": "num_inference_steps",
    "cfg": "guidance_scale",
    "cfg_scale": "guidance_scale",
    "guidance": "guidance_scale",
    "distilled_cfg_scale": "guidance_scale",
    "sampler": _SCHEDULER,
    "sampler_name": _SCHEDULER,
    "sampler_index": _SCHEDULER,
    "scheduler_name": _SCHEDULER,
    "batch_size": "num_images",
    "n_iter": "num_images",
    "controlnet": _CONTROL,
    "control_images": _CONTROL,
    "controlnet_conditioning_scale": "control.0.scale",
    "control_guidance_start": "control.0.start",
    "control_guidance_end": "control.0.end",
    "ip_adapter_image": _IMAGE_PROMPTS,
    "ip_adapter_scale": "image_prompts.0.scale",
    "redux_image": _IMAGE_PROMPTS,
    "upscaler": _UPSCALE,
    "upscaler_1": _UPSCALE,
    "upscaling_resize": "upscale.scale",
    "enable_hr": _HIRES,
    "hires_fix": _HIRES,
    "hr_scale": "hires.scale",
    "hr_upscaler": "hires.upscaler",
    "hr_second_pass_steps": "hires.num_inference_steps",
    "hr_resize_x": "hires.width",
    "hr_resize_y": "hires.height",
    "upscale_factor": "upscale.scale",
    "images": "image and reference_images",
    "reference_image": "reference_images",
    "init_image": "image",
    "init_images": "image",
    "input_image": "image",
    "denoise": "strength",
    "denoising_strength": "strength",
    "prompt_strength": "strength",
    "image_strength": "strength",
    "negative": "negative_prompt",
    "checkpoint": "model",
    "sd_model_checkpoint": "model",
    # diffusers, Replicate, fal and video APIs
    "num_outputs": "num_images",
    "num_images_per_prompt": "num_images",
    "num_videos_per_prompt": "num_images",
    "samples": "num_images",
    "num_steps": "num_inference_steps",
    "image_url": "image",
    "mask_url": "mask_image",
    "first_image": "image",
    "first_frame": "image",
    "start_image": "image",
    "end_image": "last_image",
    "last_frame": "last_image",
    "image_size": _SIZE,
    "num_seconds": _LENGTH,
    "video_length": "num_frames",
    "frames": "num_frames",
    "frame_rate": "fps",
    "frames_per_second": "fps",
    "random_seed": "seed",
    "generator": "seed",
    "lora": _LORAS,
    "lora_weights": _LORAS,
    "lora_scale": "loras.0.scale",
    "webhook_url": "webhook.url",
    "callback_url": "webhook.url",
    "timeout": "deadline_s",
    "preset": "quality",
}
_CONTROL_ENTRY = {
    "weight": "scale",
    "strength": "scale",
    "model": "name",
    "type": "name",
    "control_image": "image",
    "module": "preprocess",
    "guidance_start": "start",
    "guidance_end": "end",
}
_LORA = {"weight": "scale", "strength": "scale", "path": "name", "model": "name", "id": "name"}

ALIASES: Mapping[str, Mapping[str, str]] = {
    "": _GENERATE,
    "loras": _LORA,
    "control": _CONTROL_ENTRY,
    "image_prompts": {"weight": "scale", "strength": "scale", "model": "name"},
    "hires": {
        "denoise": "strength",
        "denoising_strength": "strength",
        "steps": "num_inference_steps",
        "name": "upscaler",
    },
    "upscale": {"model": "name", "model_name": "name", "upscaler": "name", "factor": "scale"},
    "output": {"type": "format", "compression": "quality", "base64": "inline"},
    "webhook": {"address": "url"},
}
"""Aliases by the path of the object that contains the field."""


def body_errors(error: ValidationError, body: type[BaseModel]) -> list[FieldError]:
    """Return the first validation errors of a request body, without the client's values."""
    items = error.errors(include_input=False, include_url=False)[:MAX_ERRORS]
    return [_field_error(item, body) for item in items]


def unknown_field(location: Location, body: type[BaseModel]) -> FieldError:
    """Create the error for an unknown field at a location, with a suggestion."""
    *parents, name = location
    names = [field for part in _parts(body, parents) for field in _names(part)]
    aliases = ALIASES.get(".".join(_fields_of(parents)), {})
    if body is not GenerateRequest:  # a body of another API, which may lack the suggested field
        aliases = {
            alias: suggestion
            for alias, suggestion in aliases.items()
            if _first(suggestion) in names
        }
    suggestion = did_you_mean(str(name), names, aliases)
    message = (
        f"{NO_FIELD}; did you mean {suggestion}?" if suggestion not in (None, name) else NO_FIELD
    )
    return FieldError(path_of(location), message)


def _first(suggestion: str) -> str:
    """Return the first of the field names that a suggestion for an alias contains."""
    return re.split(r"[., ]", suggestion)[0]


def _field_error(item: Any, body: type[BaseModel]) -> FieldError:
    if item["type"] == "extra_forbidden":
        return unknown_field(item["loc"], body)
    if item["type"] == "model_type":  # pydantic's message names an internal class
        return FieldError(path_of(item["loc"]), _no_object(item["loc"]))
    return field_errors([item])[0]


def _no_object(location: Location) -> str:
    shape = SHAPES.get(".".join(_fields_of(location)))
    return f"must be an object, such as {shape}" if shape else "must be an object"


def _fields_of(location: Location) -> Iterator[str]:
    """Return the field names in an error's location, without list indices."""
    return (part for part in location if isinstance(part, str))


def _parts(body: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """Return the Pydantic models that a value at an error's location may have."""
    models = [body]
    for name in _fields_of(location):
        inner = [_annotation(part, name) for part in models]
        models = [part for annotation in inner for part in _models(annotation)] or models
    return models


def _annotation(part: type[BaseModel], name: str) -> Any:
    for field, info in part.model_fields.items():
        if name in (field, info.alias):
            return info.annotation
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the Pydantic models inside a type, such as `list[LoraRequest] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for inner in get_args(annotation) for part in _models(inner)]


def _names(part: type[BaseModel]) -> list[str]:
    return [info.alias or field for field, info in part.model_fields.items()]
