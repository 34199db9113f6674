"""OpenAI's batches: many requests in one file, worked off with low priority.

Source: openai-python, src/openai/resources/batches.py, types/batch.py.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field, field_validator

from service.admission.parse import parse_as
from service.batches.endpoint import GENERATE, BatchEndpoint
from service.errors.problems import Conflict, FieldError, NotFound
from service.http.body import read_json
from service.http.negotiation import JSON
from service.jobs.model.batch import Batch, new_batch_id
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door, DoorBody
from service.routes.compat.openai.errors import openai_error
from service.routes.compat.openai.files import errors, start_of
from service.routes.compat.openai.image_batches import IMAGES
from service.schemas.examples import Example, shown
from service.schemas.response import View

PREFIX = "/v1/batches"
MAX_PAGE = 100
MAX_HOURS = 168
HOURS = "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$"
"""Pattern of a window, up to `MAX_HOURS`."""
WINDOW = re.compile(HOURS)

ENDPOINTS: dict[str, BatchEndpoint] = {one.url: one for one in (GENERATE, IMAGES)}
"""Endpoints that the lines of a batch may ask for, by `url`."""

BatchId = Annotated[str, Path(description="A batch's `id`.")]
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

    input_file_id: str
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


router = APIRouter(prefix=PREFIX, tags=["batches"], dependencies=documented("bearer"))
ASKED = {JSON: documents.schema_of(BatchRequest)}
CREATE: dict[str, Any] = {
    "responses": errors(400, 401, 404, 413, 415, 429, 503),
    "openapi_extra": {"requestBody": {"required": True, "content": ASKED}},
}


@router.post("", **CREATE)
async def create_batch(call: ByBearer) -> BatchView:
    """Begin a batch: its file is validated line by line, and then worked off."""
    with call.front.bodies.holding(call.client) as hold:
        most = call.front.settings.limits.max_body_bytes
        asked = await read_json(call.request, most, hold, partial(parse_as, BatchRequest))
    batch = Batch(
        id=new_batch_id(),
        tenant=call.tenant,
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        metadata=asked.metadata or {},
    )
    await _record(call, batch, asked.window_s)
    return await get_batch(batch.id, call)


async def _record(call: Call, batch: Batch, window_s: float) -> None:
    """Raises: NotFound: there is no such file; Conflict: too many batches are open."""
    most = call.front.settings.batches.max_open
    match await call.front.queue.record_batch(batch, window_s, most):
        case "no_file":
            said = "there is no such file with purpose batch; upload it (POST /v1/files)"
            at_fault = [FieldError("input_file_id", said)]
            raise NotFound(said, code="file_not_found", errors=at_fault)
        case "full":
            said = f"you may have {most} batches that have not ended; wait for one, or cancel it"
            raise Conflict(said, code="too_many_batches")


@router.get("", responses=errors(400, 401, 404, 503))
async def list_batches(
    call: ByBearer,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most items of a page.")] = 20,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
) -> BatchPage:
    """A page of the tenant's batches."""
    ids = await call.front.queue.batches(call.tenant)
    start = start_of(ids, after)
    found = [await call.front.queue.batch(one, call.tenant) for one in ids[start : start + limit]]
    shown = [_view(batch) for batch in found if batch]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    has_more = len(ids) > start + limit
    return BatchPage(data=shown, first_id=first, last_id=last, has_more=has_more)


@router.get("/{batch_id}", responses=errors(401, 404, 503))
async def get_batch(batch_id: BatchId, call: ByBearer) -> BatchView:
    """One batch."""
    found = await call.front.queue.batch(batch_id, call.tenant)
    if found is None:
        raise _no_such_batch(batch_id)
    return _view(found)


@router.post("/{batch_id}/cancel", responses=errors(401, 404, 503))
async def cancel_batch(batch_id: BatchId, call: ByBearer) -> BatchView:
    """Stop a batch: its running jobs are canceled, what is done is given as its results."""
    if await call.front.queue.cancel_batch(batch_id, call.tenant) is None:
        raise _no_such_batch(batch_id)
    return await get_batch(batch_id, call)


def _view(batch: Batch) -> BatchView:
    times = {
        name: None if value is None else int(value)
        for name, value in batch.model_dump().items()
        if name.endswith("_at")
    }
    return BatchView(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=_errors(batch),
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.state,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        request_counts=RequestCounts(
            total=batch.total, completed=batch.completed, failed=batch.failed
        ),
        metadata=batch.metadata or None,
        **times,
    )


def _errors(batch: Batch) -> BatchErrors | None:
    if not batch.errors:
        return None
    return BatchErrors(data=[LineErrorView(**error.model_dump()) for error in batch.errors])


def _no_such_batch(batch_id: str) -> NotFound:
    said = f"there is no batch {batch_id[:80]!r}; it has left after its time, or never was"
    return NotFound(said, code="batch_not_found")


DOOR = Door(router, bodies=(BatchRequest,), error_forms={PREFIX: openai_error})
