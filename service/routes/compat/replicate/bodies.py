"""Request and response bodies of Replicate's API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.routes.compat.endpoint import CompatibleRequestBody, TextOrList, TextOrObject
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
