"""Bodies of fal's API, and its form of errors."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from service.errors.problems import Problem
from service.http.negotiation import JSON
from service.routes.compat.door import CONTENT_POLICY, DoorBody
from service.schemas.examples import Example, shown

JOB = "job_0f8a1c2d3e4b5a69"
AT = f"https://atelier.example/fal/queue/flux-demo/requests/{JOB}"
SUBMITTED: Example = {
    "request_id": JOB,
    "response_url": AT,
    "status_url": f"{AT}/status",
    "cancel_url": f"{AT}/cancel",
}


class FalSize(DoorBody):
    """Size in pixels."""

    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class FalLora(DoorBody):
    """Adapter by its name."""

    path: str
    """Name of one of `GET /v1/loras`."""
    scale: float = 1.0
    """Strength of its effect."""


class FalRequest(DoorBody):
    """Arguments: by names that are common at fal, or any field of `POST /v1/generate`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra=shown({"prompt": "a cat", "image_size": "square", "seed": 7}),
    )

    image_size: FalSize | str | None = None
    """Width and height, or the name of a size there, such as `square_hd` (1024 x 1024)."""
    image_url: str | None = None
    """Image to start from, as a data URI: `image`."""
    mask_url: str | None = None
    """Mask of the image, white where it is redrawn: `mask_image`."""
    scheduler: str | dict[str, Any] | None = None
    """Name of one of the model's schedulers, or with its options."""
    loras: list[FalLora | dict[str, Any]] | None = None
    """Adapters by name."""
    output_format: str | None = None
    """Format of the files: `output.format`."""
    sync_mode: Literal[False] | None = None
    """Files come by their address alone."""
    enable_safety_checker: bool | None = None
    """Taken, and without effect: what is checked is the operator's choice."""
    acceleration: Literal["none", "regular"] | None = None
    """Taken, and without effect: `quality` chooses one of the model's presets."""


class FalSubmitted(BaseModel):
    """Request that was accepted."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_extra=shown(SUBMITTED))

    request_id: str
    """The job's id."""
    response_url: str
    """Address of the result."""
    status_url: str
    """Address of the status."""
    cancel_url: str
    """Address to cancel it."""


class FalStatus(FalSubmitted):
    """Status of a request."""

    model_config = ConfigDict(
        json_schema_extra=shown({**SUBMITTED, "status": "IN_PROGRESS", "logs": []})
    )

    status: Literal["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    """State of the job: `COMPLETED` however it ended."""
    queue_position: int | None = None
    """Number of jobs that start before it, of one that is queued."""
    logs: list[dict[str, Any]] | None = None
    """Progress in a line, where `logs` asks for it."""
    metrics: dict[str, float] | None = None
    """Seconds of computing (`inference_time`), once it has ended."""
    error: str | None = None
    """Reason why there is no result."""
    error_type: str | None = None
    """Kind of that, for programs."""


class FalFile(BaseModel):
    """File of a result."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    url: str
    """Address of the file."""
    content_type: str
    """Media type of the file."""
    file_name: str
    """Name for it."""
    file_size: int
    """Size in bytes."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class FalResult(BaseModel):
    """Result of a request: `images`, or the first `video`."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        json_schema_extra=shown(
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
    """The images, in their order."""
    video: FalFile | None = None
    """The video."""
    videos: list[FalFile] | None = None
    """Every video."""
    seed: int
    """Seed of the first."""
    prompt: str
    """The prompt."""
    timings: dict[str, float]
    """Seconds of computing."""
    has_nsfw_concepts: list[bool]
    """Always false: what the operator refuses has no result."""


class FalCanceled(BaseModel):
    """Answer to a cancellation."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=shown({"status": "CANCELLATION_REQUESTED"})
    )

    status: Literal["CANCELLATION_REQUESTED"]
    """Confirmation that the job is stopped."""


class FalError(BaseModel):
    """Error as fal's clients show it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    detail: str
    """Message: what happened and what to do."""
    error_type: str
    """Kind of the error, for programs."""


def code_of(problem: Problem) -> str:
    """Return the problem's code as fal's API spells it."""
    return CONTENT_POLICY.get(problem.code, problem.code)


def error_form(problem: Problem) -> Response:
    """Return a problem as fal would."""
    kind = code_of(problem)
    body = FalError(detail=problem.detail, error_type=kind)
    headers = {**problem.headers, "X-Fal-Error-Type": kind}
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=headers, media_type=JSON)
