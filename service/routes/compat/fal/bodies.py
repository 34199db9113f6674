"""Request and response bodies of fal's API, and its error format."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from service.errors.field_paths import UNION_TAG
from service.errors.problems import Problem
from service.http.negotiation import JSON
from service.routes.compat.endpoint import (
    OBJECT,
    TEXT,
    CompatibleRequestBody,
    TextOrObject,
    code_of,
    kind_of_value,
)
from service.schemas.examples import Example, schema_example

JOB = "job_0f8a1c2d3e4b5a69"
AT = f"https://atelier.example/fal/queue/flux-demo/requests/{JOB}"
SUBMITTED: Example = {
    "request_id": JOB,
    "response_url": AT,
    "status_url": f"{AT}/status",
    "cancel_url": f"{AT}/cancel",
}


class FalSize(CompatibleRequestBody):
    """Image size in fal's API, in pixels."""

    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class FalLora(CompatibleRequestBody):
    """LoRA adapter in fal's API, by name."""

    path: str
    """Name of an adapter of `GET /v1/loras`."""
    scale: float = 1.0
    """Strength of the adapter."""


FAL, NATIVE = f"{UNION_TAG}fal", f"{UNION_TAG}native"


def _kind_of_lora(value: Any) -> str:
    """Return the union tag of an adapter: with fal's `path`, or as in `POST /v1/generate`."""
    is_fal = isinstance(value, FalLora) or (isinstance(value, dict) and "path" in value)
    return FAL if is_fal else NATIVE


class FalRequest(CompatibleRequestBody):
    """Arguments of a fal request: common fal names, or any field of `POST /v1/generate`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra=schema_example({"prompt": "a cat", "image_size": "square", "seed": 7}),
    )

    image_size: (
        Annotated[
            Annotated[FalSize, Tag(OBJECT)] | Annotated[str, Tag(TEXT)],
            Discriminator(kind_of_value),
        ]
        | None
    ) = None
    """Width and height, or the name of a fal size, such as `square_hd` (1024 x 1024)."""
    image_url: str | None = None
    """Input image, as a data URI: `image`."""
    image_urls: list[str] | None = None
    """Input images, as data URIs: `image` and `reference_images`."""
    mask_url: str | None = None
    """Inpainting mask, white where the image is regenerated: `mask_image`."""
    scheduler: TextOrObject | None = None
    """Name of one of the model's schedulers, or an object with its options."""
    loras: (
        list[
            Annotated[
                Annotated[FalLora, Tag(FAL)] | Annotated[dict[str, Any], Tag(NATIVE)],
                Discriminator(_kind_of_lora),
            ]
        ]
        | None
    ) = None
    """Adapters by name."""
    output_format: str | None = None
    """File format: `output.format`."""
    sync_mode: Literal[False] | None = None
    """Only false is supported: files are returned by URL."""
    enable_safety_checker: bool | None = None
    """Accepted without effect: the operator configures the safety check."""


class FalSubmitted(BaseModel):
    """Response to an accepted fal request."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(SUBMITTED)
    )

    request_id: str
    """The job's id."""
    response_url: str
    """URL of the result."""
    status_url: str
    """URL of the status."""
    cancel_url: str
    """URL to cancel the request."""


class FalStatus(FalSubmitted):
    """Status of a fal request."""

    model_config = ConfigDict(
        json_schema_extra=schema_example({**SUBMITTED, "status": "IN_PROGRESS", "logs": []})
    )

    status: Literal["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    """State of the job; `COMPLETED` includes failed and canceled jobs."""
    queue_position: int | None = None
    """Number of jobs ahead of a queued job."""
    logs: list[dict[str, Any]] | None = None
    """Progress as one line, if requested by `logs`."""
    metrics: dict[str, float] | None = None
    """Computing time in seconds (`inference_time`), once the job has ended."""
    error: str | None = None
    """Reason why there is no result."""
    error_type: str | None = None
    """Kind of the error, for programs."""


class FalFile(BaseModel):
    """File of a fal result."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    url: str
    """URL of the file."""
    content_type: str
    """Media type of the file."""
    file_name: str
    """Suggested file name."""
    file_size: int
    """Size in bytes."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class FalResult(BaseModel):
    """Result of a fal request: `images`, or `video` and `videos`."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example(
            {
                "images": [
                    {
                        "url": f"https://atelier.example/v1/jobs/{JOB}/outputs/0",
                        "content_type": "image/png",
                        "file_name": "0.png",
                        "file_size": 2048,
                        "width": 512,
                        "height": 512,
                    }
                ],
                "seed": 7,
                "prompt": "a cat",
                "timings": {"inference": 2.9},
                "has_nsfw_concepts": [False],
            }
        ),
    )

    images: list[FalFile] | None = None
    """The images, in order."""
    video: FalFile | None = None
    """The first video."""
    videos: list[FalFile] | None = None
    """All videos."""
    seed: int
    """Seed of the first output."""
    prompt: str
    """The prompt."""
    timings: dict[str, float]
    """Computing time in seconds."""
    has_nsfw_concepts: list[bool]
    """Always false: requests that the safety check rejects have no result."""


class FalCanceled(BaseModel):
    """Response to the cancellation of a fal request."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=schema_example({"status": "CANCELLATION_REQUESTED"}),
    )

    status: Literal["CANCELLATION_REQUESTED"]
    """Confirmation that the job is being canceled."""


class FalError(BaseModel):
    """Error in the format of fal's clients."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    detail: str
    """Message: what happened and what to do."""
    error_type: str
    """Kind of the error, for programs."""


def error_form(problem: Problem) -> Response:
    """Convert a problem to fal's error format."""
    kind = code_of(problem)
    body = FalError(detail=problem.detail, error_type=kind)
    headers = {**problem.headers, "X-Fal-Error-Type": kind}
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=headers, media_type=JSON)
