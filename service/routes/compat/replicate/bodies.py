"""Bodies of Replicate's API, and the conversion of requests to `POST /v1/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.errors.problems import FieldError, Invalid
from service.front_end.models import Models
from service.routes.compat.endpoint import (
    CompatibleRequestBody,
    TextOrList,
    TextOrObject,
    file_format,
)
from service.routes.compat.names import FieldNames
from service.schemas.examples import Example, schema_example

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]


class ReplicateInput(CompatibleRequestBody):
    """Inputs of a prediction: common Replicate names, or any field of `POST /v1/generate`."""

    model_config = ConfigDict(extra="allow")

    num_outputs: int | None = None
    """Number of images: `num_images`."""
    guidance: float | None = None
    """Guidance scale: `guidance_scale`."""
    image: TextOrList | None = None
    """Input image; of several, the others are `reference_images`."""
    input_image: str | None = None
    """Input image: `image`."""
    input_images: list[str] | None = None
    """Input images: `image` and `reference_images`."""
    image_input: list[str] | None = None
    """Input images: `image` and `reference_images`."""
    lora_weights: str | None = None
    """Name of an adapter: `loras`."""
    lora_scale: float | None = None
    """Strength of `lora_weights`; without one it has no effect."""
    extra_lora: str | None = None
    """Name of a second adapter."""
    extra_lora_scale: float | None = None
    """Strength of `extra_lora`; without one it has no effect."""
    mask: str | None = None
    """Inpainting mask, white where the image is regenerated: `mask_image`."""
    prompt_strength: float | None = None
    """Strength of the change to the image, from 0 to 1: `strength`."""
    scheduler: TextOrObject | None = None
    """Name of one of the model's schedulers, or an object with its options."""
    output_format: str | None = None
    """File format: `output.format`."""
    output_quality: int | None = None
    """File quality: `output.quality`."""


class PredictionRequest(CompatibleRequestBody):
    """Request for a prediction, in Replicate's format."""

    model_config = ConfigDict(
        json_schema_extra=schema_example(
            {"version": "flux-demo", "input": {"prompt": "a cat", "num_outputs": 1, "seed": 7}}
        )
    )

    version: str | None = None
    """Name of a model. An owner before the name (`atelier/`) is ignored."""
    model: str | None = None
    """Alternative to `version`."""
    input: ReplicateInput = Field(default_factory=ReplicateInput)
    """Inputs by name."""
    stream: bool | None = None
    """Accepted without effect: all outputs become available together."""
    webhook: str | None = None
    """Rejected: use `input.webhook`, whose messages have this API's format."""
    webhook_events_filter: list[str] | None = None
    """Rejected, like `webhook`."""


PREDICTION: Example = {
    "id": "job_0f8a1c2d3e4b5a69",
    "model": "atelier/flux-demo",
    "version": "flux-demo",
    "status": "succeeded",
    "input": {"prompt": "a cat", "seed": 7},
    "output": ["https://atelier.example/v1/jobs/job_0f8a1c2d3e4b5a69/outputs/0"],
    "logs": "",
    "error": None,
    "metrics": {"predict_time": 2.9},
    "created_at": "2026-01-02T03:04:05.678Z",
    "started_at": "2026-01-02T03:04:06.000Z",
    "completed_at": "2026-01-02T03:04:09.000Z",
    "urls": {"get": "https://atelier.example/v1/predictions/job_0f8a1c2d3e4b5a69"},
}


class Prediction(BaseModel):
    """Job in the format of a Replicate prediction."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(PREDICTION)
    )

    id: str
    """The job's id."""
    model: str
    """Name of the model, with an owner."""
    version: str
    """Name of the model."""
    status: Status
    """State of the job; `starting` in the response to its creation until the job has ended."""
    input: dict[str, Any]
    """Resolved fields of the request."""
    output: list[str] | None
    """URL of each file; null until the job has outputs."""
    logs: str
    """Progress as one line."""
    error: str | None
    """Reason of a failure."""
    metrics: dict[str, float]
    """Computing time in seconds, once the job has ended."""
    created_at: str
    """Time of acceptance."""
    started_at: str | None
    """Time when a worker started the job."""
    completed_at: str | None
    """Time when the job ended."""
    urls: dict[str, str]
    """URLs to read the prediction (`get`) and to cancel it (`cancel`)."""


class PredictionPage(BaseModel):
    """Page of predictions in Replicate's format, newest first."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example({"previous": None, "next": None, "results": [PREDICTION]}),
    )

    previous: str | None = None
    """Always null: pages only continue to older predictions."""
    next: str | None
    """URL of the next page; null on the last page."""
    results: list[Prediction]
    """The predictions."""


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
