"""OpenAI's batches: many requests in one file, worked off with low priority.

Source: openai-python, src/openai/resources/batches.py, types/batch.py.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from service.admission.parse import idempotency_key, parse_as
from service.errors.problems import Conflict, FieldError, NotFound
from service.http.body import read_json
from service.http.negotiation import JSON
from service.http.request_ids import request_id_of
from service.jobs.model.batch import Batch, batch_fields, new_batch_id
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.openai.batch_bodies import (
    BatchErrors,
    BatchPage,
    BatchRequest,
    BatchView,
    LineErrorView,
    RequestCounts,
)
from service.routes.compat.openai.errors import openai_error
from service.routes.compat.openai.files import errors, start_of, too_many_files

PREFIX = "/v1/batches"
MAX_PAGE = 100

BatchId = Annotated[str, Path(description="A batch's `id`.")]
router = APIRouter(prefix=PREFIX, tags=["batches"], dependencies=documented("bearer"))
ASKED = {JSON: documents.schema_of(BatchRequest)}
CREATE: dict[str, Any] = {
    "responses": errors(400, 401, 404, 409, 413, 415, 429, 503),
    "openapi_extra": {"requestBody": {"required": True, "content": ASKED}},
}


@router.post("", **CREATE)
async def create_batch(call: ByBearer) -> BatchView:
    """Begin a batch: its file is validated line by line, and then worked off.

    Asked for again with the same `Idempotency-Key`, it is the same batch.
    """
    with call.front.bodies.holding(call.client) as hold:
        most = call.front.settings.limits.max_body_bytes
        asked = await read_json(call.request, most, hold, partial(parse_as, BatchRequest))
    key = idempotency_key(call.request.headers)
    batch = Batch(
        id=new_batch_id(call.tenant, key),
        tenant=call.tenant,
        key_id=call.key_id,
        request_id=request_id_of(call.request),
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        completion_window=asked.completion_window,
        metadata=asked.metadata or {},
    )
    await _record(call, batch, asked.window_s)
    found = await _found(call, batch.id)
    if batch_fields(found) != batch_fields(batch) or found.metadata != batch.metadata:
        said = "this idempotency key was used with another body; take a new key"
        raise Conflict(said, code="idempotency_conflict")
    return _view(found)


async def _record(call: Call, batch: Batch, window_s: float) -> None:
    """Raises: NotFound: there is no such file; Conflict: there are too many batches or files."""
    bounds = call.front.settings.batches
    most = bounds.max_open
    match await call.front.queue.record_batch(batch, window_s, most, bounds.max_files):
        case "no_file":
            said = "there is no such file with purpose batch; upload it (POST /v1/files)"
            at_fault = [FieldError("input_file_id", said)]
            raise NotFound(said, code="file_not_found", errors=at_fault)
        case "full":
            said = f"you may have {most} batches that have not ended; wait for one, or cancel it"
            raise Conflict(said, code="too_many_batches")
        case "no_room":
            raise too_many_files(bounds.max_files)


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
    return _view(await _found(call, batch_id))


async def _found(call: Call, batch_id: str) -> Batch:
    """Raises: NotFound."""
    found = await call.front.queue.batch(batch_id, call.tenant)
    if found is None:
        raise _no_such_batch(batch_id)
    return found


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
