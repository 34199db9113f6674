"""Conversion of a Replicate prediction request to the fields of `POST /v1/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.errors.problems import FieldError, Invalid
from service.front_end.models import Models
from service.routes.compat.endpoint import file_format
from service.routes.compat.names import FieldNames
from service.routes.compat.replicate.bodies import PredictionRequest, ReplicateInput

FIELDS = {
    "num_outputs": "num_images",
    "guidance": "guidance_scale",
    "mask": "mask_image",
    "prompt_strength": "strength",
}
"""Replicate's common input names, mapped to this API's fields."""
IMAGES = ("image", "input_image", "input_images", "image_input")
"""Inputs with images, by model: FLUX.1 Kontext, FLUX.2 and others."""
LORAS = {"lora_weights": "lora_scale", "extra_lora": "extra_lora_scale"}
"""Inputs with the names of adapters, and with their scales."""


async def named_model(models: Models, body: PredictionRequest, path: str | None) -> str:
    """Return the model that a Replicate request's path or body names, without its owner.

    Raises: Invalid: none, or different ones.
    """
    names = {await models.find(name) for name in (path, body.version, body.model) if name}
    if len(names) != 1:
        raise Invalid([FieldError("version", "name one model, by version or by model")])
    return names.pop()


def to_generate_fields(body: PredictionRequest, model: str) -> dict[str, Any]:
    """Convert a Replicate request to the fields of `POST /v1/generate`. Raises: Invalid."""
    extra_fields = body.input.__pydantic_extra__ or {}
    if body.webhook or body.webhook_events_filter:
        message = (
            "is not supported; input.webhook sends messages, in another format than Replicate's"
        )
        raise Invalid([FieldError("webhook", message)])
    if "model" in extra_fields:
        raise Invalid([FieldError("input.model", "name the model by version, or in the path")])
    ours = {ours: getattr(body.input, theirs) for theirs, ours in FIELDS.items()}
    scheduler = body.input.scheduler
    ours["scheduler"] = {"name": scheduler} if isinstance(scheduler, str) else scheduler
    ours |= {"output": _output(body.input), "loras": _loras(body.input), **_images(body.input)}
    present = {name: value for name, value in ours.items() if value is not None}
    if duplicates := sorted(present.keys() & extra_fields.keys()):
        raise Invalid(
            [FieldError(f"input.{name}", "is given under two names") for name in duplicates]
        )
    return {**extra_fields, **present, "model": model}


def _images(inputs: ReplicateInput) -> dict[str, Any]:
    """Convert the input images of a Replicate request. Raises: Invalid: under two names."""
    names = [name for name in IMAGES if getattr(inputs, name)]
    if len(names) > 1:
        raise Invalid([FieldError(f"input.{names[1]}", f"cannot be combined with {names[0]}")])
    images = getattr(inputs, names[0]) if names else []
    first, *others = [images] if isinstance(images, str) else images or [None]
    return {"image": first, "reference_images": others or None}


def _loras(inputs: ReplicateInput) -> list[dict[str, Any]] | None:
    """Convert the adapters of a Replicate request."""
    pairs = ((getattr(inputs, name), getattr(inputs, scale)) for name, scale in LORAS.items())
    return [
        {"name": name, "scale": 1.0 if scale is None else scale} for name, scale in pairs if name
    ] or None


def model_in_body(models: Models, body: Mapping[str, Any], path: str | None) -> str | None:
    """Return the model that an unvalidated Replicate body or the path names."""
    name = path or body.get("version") or body.get("model")
    return models.named_in(name) if isinstance(name, str) else None


def _output(inputs: ReplicateInput) -> dict[str, Any] | None:
    output = {"format": file_format(inputs.output_format), "quality": inputs.output_quality}
    return {name: value for name, value in output.items() if value is not None} or None


def field_names(body: PredictionRequest) -> FieldNames:
    """Return Replicate's names of the converted fields, for errors."""
    foreign = {"model": "model" if body.model else "version"}
    for theirs, ours in FIELDS.items():
        if getattr(body.input, theirs) is not None:
            foreign[ours] = f"input.{theirs}"
    if body.input.output_format is not None or body.input.output_quality is not None:
        foreign |= {f"output.{field}": f"input.output_{field}" for field in ("format", "quality")}
    for theirs in IMAGES:
        if getattr(body.input, theirs):
            foreign |= dict.fromkeys(("image", "reference_images"), f"input.{theirs}")
    if body.input.lora_weights:
        foreign |= dict.fromkeys(("loras", "loras.0", "loras.0.name"), "input.lora_weights")
    if isinstance(body.input.scheduler, str):
        foreign["scheduler.name"] = "input.scheduler"
    return FieldNames(foreign, prefix="input.")
