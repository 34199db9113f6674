"""Bodies and errors of fal's API, and the conversion of requests to `POST /v1/generate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from service.errors.problems import UNION_TAG, FieldError, Invalid, Problem
from service.http.negotiation import JSON
from service.routes.compat.endpoint import (
    OBJECT,
    TEXT,
    CompatibleRequestBody,
    TextOrObject,
    code_of,
    file_format,
    kind_of_value,
)
from service.routes.compat.names import FieldNames
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


SIZES: Mapping[str, tuple[int, int]] = {
    "square_hd": (1024, 1024),
    "square": (512, 512),
    "portrait_4_3": (768, 1024),
    "portrait_16_9": (576, 1024),
    "landscape_4_3": (1024, 768),
    "landscape_16_9": (1024, 576),
}
"""Width and height by fal's size name. Source: docs.fal.ai, the models' schemas."""
PRIORITIES = ("low", "normal")
"""Supported values of `X-Fal-Queue-Priority`, which equal this API's priorities."""


def to_generate_fields(body: FalRequest, model: str, priority: str | None) -> dict[str, Any]:
    """Convert a fal request for a model to the fields of `POST /v1/generate`. Raises: Invalid."""
    extra_fields = body.__pydantic_extra__ or {}
    if "model" in extra_fields:
        raise Invalid([FieldError("model", "the model is part of the path; leave it out")])
    scheduler, output = body.scheduler, body.output_format
    converted: dict[str, Any] = {
        **_images(body),
        "mask_image": body.mask_url,
        "scheduler": {"name": scheduler} if isinstance(scheduler, str) else scheduler,
        "loras": [_lora(lora) for lora in body.loras] if body.loras else None,
        "output": {"format": file_format(output)} if output else None,
        "priority": priority if priority in PRIORITIES else None,
        **_size(body.image_size),
    }
    present = {name: value for name, value in converted.items() if value is not None}
    if duplicates := sorted(present.keys() & extra_fields.keys()):
        raise Invalid([FieldError(name, "is given under two names") for name in duplicates])
    return {**extra_fields, **present, "model": model}


def _images(body: FalRequest) -> dict[str, Any]:
    """Convert the input images of a fal request. Raises: Invalid: in both of its forms."""
    if not body.image_urls:
        return {"image": body.image_url}
    if body.image_url:
        raise Invalid([FieldError("image_urls", "cannot be combined with image_url")])
    return {"image": body.image_urls[0], "reference_images": body.image_urls[1:] or None}


def _lora(lora: FalLora | dict[str, Any]) -> dict[str, Any]:
    if isinstance(lora, FalLora):
        return {"name": lora.path, "scale": lora.scale}
    return lora


def _size(size: FalSize | str | None) -> dict[str, int]:
    """Convert a fal size to width and height. Raises: Invalid."""
    if size is None:
        return {}
    if isinstance(size, FalSize):
        return size.model_dump()
    if size not in SIZES:
        message = (
            f"there is no size {size[:80]!r}; available: {', '.join(SIZES)}, or width and height"
        )
        raise Invalid([FieldError("image_size", message)])
    width, height = SIZES[size]
    return {"width": width, "height": height}


def field_names(body: FalRequest) -> FieldNames:
    """Return fal's names of the converted fields, for errors."""
    foreign = {"output.format": "output_format"} if body.output_format else {}
    foreign |= {"image": "image_url"} if body.image_url else {}
    if body.image_urls:
        foreign |= dict.fromkeys(("image", "reference_images"), "image_urls")
    foreign |= {"mask_image": "mask_url"} if body.mask_url else {}
    foreign |= {"scheduler.name": "scheduler"} if isinstance(body.scheduler, str) else {}
    if body.image_size is not None:
        inside = "." if isinstance(body.image_size, FalSize) else None
        for side in ("width", "height"):
            foreign[side] = f"image_size.{side}" if inside else "image_size"
    return FieldNames(foreign)
