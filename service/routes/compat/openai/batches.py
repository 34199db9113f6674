"""OpenAI's batch API: many requests in one file, processed with low priority.

Source: openai-python, src/openai/resources/batches.py, types/batch.py.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from service.admission.parse import idempotency_key, parse_as
from service.errors.problems import Conflict, FieldError, NotFound
from service.http.body import read_json
from service.http.headers import request_id_of
from service.http.negotiation import JSON
from service.jobs.batches import CancelBatch
from service.jobs.model.batch import Batch, batch_fields, new_batch_id
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
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
REQUEST_CONTENT = {JSON: documents.schema_of(BatchRequest)}
CREATE: dict[str, Any] = {
    "responses": errors(400, 401, 404, 409, 413, 415, 429, 503),
    "openapi_extra": {"requestBody": {"required": True, "content": REQUEST_CONTENT}},
}


@router.post("", **CREATE)
async def create_batch(call: ByBearer) -> BatchView:
    """Create a batch, as OpenAI's `batches.create`: validate its file, then run its requests.

    Repeating the request with the same `Idempotency-Key` returns the same batch.
    """
    with call.front.bodies.holding(call.client) as hold:
        max_bytes = call.front.settings.limits.max_body_bytes
        batch_request = await read_json(
            call.request, max_bytes, hold, partial(parse_as, BatchRequest)
        )
    key = idempotency_key(call.request.headers)
    batch = Batch(
        id=new_batch_id(call.tenant, key),
        tenant=call.tenant,
        key_id=call.key_id,
        request_id=request_id_of(call.request),
        endpoint=batch_request.endpoint,
        input_file_id=batch_request.input_file_id,
        completion_window=batch_request.completion_window,
        metadata=batch_request.metadata or {},
    )
    await _record(call, batch, batch_request.window_s)
    stored = await _batch(call, batch.id)
    if batch_fields(stored) != batch_fields(batch) or stored.metadata != batch.metadata:
        message = "this idempotency key was used with another body; use a new key"
        raise Conflict(message, code="idempotency_conflict")
    return _view(stored)


async def _record(call: Call, batch: Batch, window_s: float) -> None:
    """Store a new batch. Raises: NotFound: no such file; Conflict: too many batches or files."""
    settings = call.front.settings.batches
    max_open = settings.max_open
    match await call.front.queue.record_batch(batch, window_s, max_open, settings.max_files):
        case "no_file":
            message = "there is no such file with purpose batch; upload it (POST /v1/files)"
            errors = [FieldError("input_file_id", message)]
            raise NotFound(message, code="file_not_found", errors=errors)
        case "full":
            message = (
                f"you may have {max_open} batches that have not ended; wait for one, or cancel it"
            )
            raise Conflict(message, code="too_many_batches")
        case "no_room":
            raise too_many_files(settings.max_files)


@router.get("", responses=errors(400, 401, 404, 503))
async def list_batches(
    call: ByBearer,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description=("Maximum number of items of the page."))
    ] = 20,
    after: Annotated[
        str | None, Query(description=("Cursor: the last id of the previous page."))
    ] = None,
) -> BatchPage:
    """Return a page of the tenant's batches, as OpenAI's `batches.list`."""
    ids = await call.front.queue.batches(call.tenant)
    start = start_of(ids, after)
    batches = [
        await call.front.queue.batch(batch_id, call.tenant)
        for batch_id in ids[start : start + limit]
    ]
    views = [_view(batch) for batch in batches if batch]
    first, last = (views[0].id, views[-1].id) if views else (None, None)
    has_more = len(ids) > start + limit
    return BatchPage(data=views, first_id=first, last_id=last, has_more=has_more)


@router.get("/{batch_id}", responses=errors(401, 404, 503))
async def get_batch(batch_id: BatchId, call: ByBearer) -> BatchView:
    """Return one batch, as OpenAI's `batches.retrieve`."""
    return _view(await _batch(call, batch_id))


async def _batch(call: Call, batch_id: str) -> Batch:
    """Return a tenant's batch by its id. Raises: NotFound."""
    batch = await call.front.queue.batch(batch_id, call.tenant)
    if batch is None:
        raise _no_such_batch(batch_id)
    return batch


@router.post("/{batch_id}/cancel", responses=errors(401, 404, 503))
async def cancel_batch(batch_id: BatchId, call: ByBearer) -> BatchView:
    """Cancel a batch: its running jobs are canceled, and finished requests become its results."""
    if await call.front.queue.run(CancelBatch(batch_id, call.tenant)) is None:
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
    message = f"there is no batch {batch_id[:80]!r}; it has expired, or never existed"
    return NotFound(message, code="batch_not_found")


ENDPOINT = CompatibleEndpoint(router, bodies=(BatchRequest,), error_forms={PREFIX: openai_error})
