"""Bodies of Replicate's API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.routes.compat.door import DoorBody
from service.schemas.examples import Example, shown

Status = Literal["starting", "processing", "succeeded", "failed", "canceled"]


class ReplicateInput(DoorBody):
    """Settings: by names that are common at Replicate, or any field of `POST /v1/generate`."""

    model_config = ConfigDict(extra="allow")

    num_outputs: int | None = None
    """Number of images: `num_images`."""
    guidance: float | None = None
    """Guidance scale: `guidance_scale`."""
    mask: str | None = None
    """Mask of the image, white where it is redrawn: `mask_image`."""
    prompt_strength: float | None = None
    """Share of the image to redraw: `strength`."""
    scheduler: str | dict[str, Any] | None = None
    """Name of one of the model's schedulers, or with its options."""
    output_format: str | None = None
    """Format of the files: `output.format`."""
    output_quality: int | None = None
    """Quality of the files: `output.quality`."""


class PredictionRequest(DoorBody):
    """Prediction to make."""

    model_config = ConfigDict(
        json_schema_extra=shown(
            {"version": "flux-demo", "input": {"prompt": "a cat", "num_outputs": 1, "seed": 7}}
        )
    )

    version: str | None = None
    """Name of a model. An owner before it (`atelier/`) changes nothing."""
    model: str | None = None
    """The same, under its other name."""
    input: ReplicateInput = Field(default_factory=ReplicateInput)
    """Settings by name."""
    stream: bool | None = None
    """Taken, and without effect: outputs are there when all of them are."""
    webhook: str | None = None
    """Refused: `input.webhook` is ours, whose messages have another shape."""
    webhook_events_filter: list[str] | None = None
    """Refused likewise."""


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
    """A job as Replicate shows a prediction."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_extra=shown(PREDICTION))

    id: str
    """The job's id."""
    model: str
    """Name of the model, with an owner."""
    version: str
    """Name of the model."""
    status: Status
    """State of the job. Of a new one it is `starting` until the job has ended."""
    input: dict[str, Any]
    """Resolved fields of the request."""
    output: list[str] | None
    """Address of each file; null before they are there."""
    logs: str
    """Progress in a line."""
    error: str | None
    """Reason of a failure."""
    metrics: dict[str, float]
    """Seconds of computing, once it has ended."""
    created_at: str
    """Time of acceptance."""
    started_at: str | None
    """Time at which a pool began with it."""
    completed_at: str | None
    """Time of its end."""
    urls: dict[str, str]
    """Addresses to ask for it again (`get`) and to cancel it (`cancel`)."""


class PredictionPage(BaseModel):
    """A page of predictions, newest first."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=shown({"previous": None, "next": None, "results": [PREDICTION]}),
    )

    previous: str | None = None
    """Always null: pages go on to older ones."""
    next: str | None
    """Address of the next page; null: this is the last."""
    results: list[Prediction]
    """The predictions."""
