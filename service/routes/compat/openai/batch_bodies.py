"""Bodies of OpenAI's batches.

Source: openai-python, src/openai/types/batch.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator

from service.batches.endpoint import GENERATE, BatchEndpoint
from service.routes.compat.door import DoorBody
from service.routes.compat.openai.image_batches import IMAGES
from service.schemas.examples import Example, shown
from service.schemas.response import View

MAX_HOURS = 168
MAX_ID_CHARS = 64
HOURS = "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$"
"""Pattern of a window, up to `MAX_HOURS`."""
WINDOW = re.compile(HOURS)

ENDPOINTS: dict[str, BatchEndpoint] = {one.url: one for one in (GENERATE, IMAGES)}
"""Endpoints that the lines of a batch may ask for, by `url`."""

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class BatchRequest(DoorBody):
    """Request for a batch."""

    model_config = ConfigDict(
        json_schema_extra=shown(
            {
                "input_file_id": "file-0f8a1c2d3e4b5a69",
                "endpoint": "/v1/generate",
                "completion_window": "24h",
                "metadata": {"of": "us"},
            }
        )
    )

    input_file_id: Annotated[str, Field(max_length=MAX_ID_CHARS)]
    """Id of an uploaded file with `purpose` batch."""
    endpoint: Annotated[str, Field(json_schema_extra={"enum": [*ENDPOINTS]})]
    """`url` of all its lines."""
    completion_window: Annotated[str, Field(json_schema_extra={"pattern": HOURS})]
    """`24h`, or another number of hours up to 168: what is not done by then is given up."""
    metadata: Metadata | None = None
    """Up to 16 texts, given back untouched."""

    @field_validator("endpoint")
    @classmethod
    def _known(cls, endpoint: str) -> str:
        if endpoint not in ENDPOINTS:
            raise ValueError(f"must be one of {', '.join(ENDPOINTS)}")
        return endpoint

    @field_validator("completion_window")
    @classmethod
    def _hours(cls, window: str) -> str:
        if not WINDOW.fullmatch(window):
            raise ValueError(f"must be a number of hours up to {MAX_HOURS}, such as 24h")
        return window

    @property
    def window_s(self) -> float:
        """Return the window in seconds."""
        return 3600.0 * int(self.completion_window.removesuffix("h"))


BATCH: Example = {
    "id": "batch_0f8a1c2d3e4b5a69",
    "object": "batch",
    "endpoint": "/v1/generate",
    "errors": None,
    "input_file_id": "file-0f8a1c2d3e4b5a69",
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1769860800,
    "in_progress_at": 1769860801,
    "expires_at": 1769947200,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 100, "completed": 17, "failed": 0},
    "metadata": {"of": "us"},
}


class RequestCounts(View):
    """Numbers of a batch's lines."""

    total: int
    """Number of all lines, once the file is validated."""
    completed: int
    """Number of those whose job succeeded."""
    failed: int
    """Number of those that were refused, whose job failed, or that were given up."""


class LineErrorView(View):
    """Error in one line of a batch's file."""

    code: str
    """Kind of the error, for programs."""
    message: str
    """Message for people: what is wrong and what to do."""
    line: int | None = None
    """Number of the line, from 1; null: the file as a whole."""
    param: str | None = None
    """Field at fault; null: none in particular."""


class BatchErrors(View):
    """Reasons why a batch's file was refused."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[LineErrorView]
    """Lines at fault, the first hundred."""


class BatchView(View):
    """Batch as OpenAI's clients read it. Times are seconds since the epoch."""

    model_config = ConfigDict(json_schema_extra=shown(BATCH))

    id: str
    """Name of the batch in addresses."""
    object: Literal["batch"] = "batch"
    """Always `batch`."""
    endpoint: str
    """`url` of all its lines."""
    errors: BatchErrors | None = None
    """Reasons why its file was refused; null: it was not."""
    input_file_id: str
    """File with its requests."""
    completion_window: str
    """Hours after which what is not done is given up."""
    status: str
    """`validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or
    `cancelled`."""
    output_file_id: str | None = None
    """File with the answers to the lines that succeeded."""
    error_file_id: str | None = None
    """File with the answers to the others."""
    created_at: int
    """Time at which it was accepted."""
    in_progress_at: int | None = None
    """Time at which its file had been validated, as the others null before it."""
    expires_at: int
    """Time after which what is not done is given up."""
    finalizing_at: int | None = None
    """Time at which its last line had ended."""
    completed_at: int | None = None
    """Time at which its results were there."""
    failed_at: int | None = None
    """Time at which its file was refused."""
    expired_at: int | None = None
    """Time at which the rest was given up."""
    cancelling_at: int | None = None
    """Time at which a client asked for its end."""
    cancelled_at: int | None = None
    """Time of that end."""
    request_counts: RequestCounts
    """Numbers of its lines."""
    metadata: dict[str, str] | None = None
    """Texts of the request, untouched."""


class BatchPage(View):
    """Page of batches, newest first."""

    model_config = ConfigDict(
        json_schema_extra=shown(
            {
                "object": "list",
                "data": [BATCH],
                "first_id": BATCH["id"],
                "last_id": BATCH["id"],
                "has_more": False,
            }
        )
    )

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[BatchView]
    """Batches of this page."""
    first_id: str | None = None
    """Id of the first of them; null: there is none."""
    last_id: str | None = None
    """Id of the last of them: `after` of the next page."""
    has_more: bool
    """True if there is a next page."""
