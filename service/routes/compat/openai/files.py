"""OpenAI's file API: input files of batches, and their result files.

Source: openai-python, src/openai/resources/files.py, types/file_object.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field

from service.admission.refusals import within_quotas
from service.batches.lines import chunks_of
from service.batches.results import JSONL, new_file
from service.errors.problems import Conflict, FieldError, Invalid, NotFound, Problem
from service.http.form_parts import FilePart, MemoryPart, Part
from service.http.multipart import read_form
from service.jobs.batches import RemoveFile
from service.jobs.model.batch import Purpose, StoredFile, new_file_id
from service.jobs.producer import Deposit
from service.jobs.storage.object_store import file_key
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.compat.openai.errors import OpenAIError, openai_error
from service.routes.compat.replicate import uploads
from service.schemas.examples import Example, schema_example
from service.schemas.response import View

PREFIX = "/v1/files"
MAX_PAGE = 10_000
TEXT_BYTES = 256
"""Maximum size of a text field of the form."""
EXPIRES = ("expires_after[anchor]", "expires_after[seconds]")
"""Form fields that OpenAI's SDK may send; they are ignored, since `batches.retention_s` applies."""

FileId = Annotated[str, Path(description="A file's `id`.")]
Order = Literal["asc", "desc"]


FILE: Example = {
    "id": "file-0f8a1c2d3e4b5a69",
    "object": "file",
    "bytes": 2048,
    "created_at": 1769860800,
    "expires_at": 1770465600,
    "filename": "cats.jsonl",
    "purpose": "batch",
    "status": "processed",
}


class FileView(View):
    """Metadata of an uploaded file in OpenAI's format."""

    model_config = ConfigDict(json_schema_extra=schema_example(FILE))

    id: str
    """Id of the file."""
    object: Literal["file"] = "file"
    """Always `file`."""
    bytes: int
    """Size in bytes."""
    created_at: int
    """Time of the upload: seconds since the epoch."""
    expires_at: int
    """Time after which the file is deleted: seconds since the epoch."""
    filename: str
    """File name from the upload."""
    purpose: Purpose
    """`batch`: requests; `batch_output`: results."""
    status: Literal["processed"] = "processed"
    """Always `processed`: the file is validated when its batch starts."""


class FilePage(View):
    """Page of files in OpenAI's format."""

    model_config = ConfigDict(
        json_schema_extra=schema_example(
            {
                "object": "list",
                "data": [FILE],
                "first_id": FILE["id"],
                "last_id": FILE["id"],
                "has_more": False,
            }
        )
    )

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[FileView]
    """Files of this page."""
    first_id: str | None = None
    """Id of the page's first file; null if empty."""
    last_id: str | None = None
    """Id of the page's last file: `after` of the next page."""
    has_more: bool
    """True if there is a next page."""


class FileDeleted(View):
    """Confirmation that a file was deleted, in OpenAI's format."""

    model_config = ConfigDict(
        json_schema_extra=schema_example({"id": FILE["id"], "object": "file", "deleted": True})
    )

    id: str
    """Id of the deleted file."""
    object: Literal["file"] = "file"
    """Always `file`."""
    deleted: Literal[True] = True
    """Always true: otherwise the response is an error."""


class FileForm(View):
    """Form of OpenAI's file upload."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=schema_example({"file": "@cats.jsonl", "purpose": "batch"}),
    )

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """File of requests: JSON lines, one request per line."""
    purpose: Literal["batch"]
    """Use of the file: only batches."""
    anchor: Annotated[str | None, Field(alias="expires_after[anchor]")] = None
    """Accepted without effect, like `expires_after[seconds]`: files expire after
    `batches.retention_s`."""
    seconds: Annotated[str | None, Field(alias="expires_after[seconds]")] = None
    """Accepted without effect."""


def start_of(ids: Sequence[str], after: str | None) -> int:
    """Return the index of the page that follows the id `after`. Raises: NotFound: no such id.

    Without the error, a client would restart at the first page if that item was deleted meanwhile.
    """
    if after is None:
        return 0
    if after not in ids:
        message = f"there is no {after[:80]!r} in this list; start again without after"
        raise NotFound(message, errors=[FieldError("after", "there is no such id in this list")])
    return ids.index(after) + 1


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of the file routes for OpenAPI."""
    return documents.errors(OpenAIError, *statuses)


router = APIRouter(prefix=PREFIX, tags=["batches"], dependencies=documented("bearer"))
FORM = {"multipart/form-data": documents.schema_of(FileForm)}
UPLOAD: dict[str, Any] = {
    "responses": errors(400, 401, 409, 413, 415, 429, 503),
    "openapi_extra": {"requestBody": {"required": True, "content": FORM}},
}


@router.post("", response_model=FileView, **UPLOAD)
async def create_file(call: ByBearer) -> FileView | Response:
    """Upload a file of requests for a batch: JSON lines, one request per line.

    Replicate's client sends an input image here, as `content`, and receives a data URI.
    """
    with call.front.uploads.slot(call.client) as place, uploads.receiving(call) as image:
        async with _upload(call) as file:
            texts = {name: MemoryPart(TEXT_BYTES, name) for name in ("purpose", *EXPIRES)}
            parts: dict[str, Part] = {"file": file, **texts, **image.parts}
            with image.hold.receiving():
                await read_form(call.request, parts, arrived=place.arrived)
            place.is_received = True
            if image.is_present:
                return await image.answer()
            _check_form(file, texts["purpose"])
            return _view(await _store(call, file))


@asynccontextmanager
async def _upload(call: Call) -> AsyncIterator[FilePart]:
    """Create a temporary file for an upload, unnamed so that the OS deletes it after a crash."""
    settings = call.front.settings
    folder = settings.state_dir if settings.state_dir.is_dir() else None
    file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed in a thread
    try:
        yield FilePart(settings.batches.max_file_bytes, "a batch's file", file)
    finally:
        await asyncio.to_thread(file.close)


def _check_form(file: FilePart, purpose: MemoryPart) -> None:
    """Check the `file` and `purpose` of an upload form. Raises: Invalid."""
    errors = [] if file.is_present else [FieldError("file", "Field required")]
    if purpose.text() != "batch":
        errors.append(FieldError("purpose", "must be batch: files are used by batches only"))
    if errors:
        raise Invalid(errors)


async def _store(call: Call, part: FilePart) -> StoredFile:
    """Store an uploaded file, then record it.

    Raises: Conflict, Busy: the tenant has too many files, or too many bytes; StoreError.
    """
    front, max_files = call.front, call.front.settings.batches.max_files
    limits = await front.tenants.of(call.tenant)
    name = part.filename or "batch.jsonl"
    file = new_file(front, new_file_id(), call.tenant, name, "batch", part.bytes)
    await front.queue.run(Deposit(file.id))
    await front.store.put_file(file_key(file.id), part.file, JSONL)
    try:
        async with within_quotas(front, call.tenant):
            if not await front.queue.record_file(file, max_files, limits):
                raise too_many_files(max_files)
    except Problem:
        await front.store.delete([file_key(file.id)])
        await front.queue.withdraw(file.id)
        raise
    return file


def too_many_files(max_files: int) -> Conflict:
    """Return the problem for a file, or a batch with result files, beyond the limit."""
    detail = (
        f"you have reached the limit of {max_files} files, which includes two for each batch that"
        f" has not ended; delete one (DELETE {PREFIX}/ID)"
    )
    return Conflict(detail, code="too_many_files")


def _view(file: StoredFile) -> FileView:
    return FileView(**file.model_dump(exclude={"tenant"}))


@router.get("", responses=errors(400, 401, 404, 503))
async def list_files(
    call: ByBearer,
    purpose: Annotated[Purpose | None, Query(description="Only files of this purpose.")] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_PAGE, description=("Maximum number of items of the page."))
    ] = MAX_PAGE,
    after: Annotated[
        str | None, Query(description=("Cursor: the last id of the previous page."))
    ] = None,
    order: Annotated[Order, Query(description="Order by upload time.")] = "desc",
) -> FilePage:
    """Return a page of the tenant's files, as OpenAI's `files.list`."""
    stored = await call.front.queue.files(call.tenant)
    stored = [file for file in stored if purpose in (None, file.purpose)]
    stored = stored if order == "desc" else stored[::-1]
    start = start_of([file.id for file in stored], after)
    views = [_view(file) for file in stored[start : start + limit]]
    first, last = (views[0].id, views[-1].id) if views else (None, None)
    has_more = len(stored) > start + limit
    return FilePage(data=views, first_id=first, last_id=last, has_more=has_more)


@router.get("/{file_id}", responses=errors(401, 404, 503))
async def get_file(file_id: FileId, call: ByBearer) -> FileView:
    """Return one file's metadata, as OpenAI's `files.retrieve`."""
    return _view(await _file(call, file_id))


@router.delete("/{file_id}", responses=errors(401, 404, 409, 503))
async def delete_file(file_id: FileId, call: ByBearer) -> FileDeleted:
    """Delete a file, as OpenAI's `files.delete`, unless an unfinished batch reads it."""
    match await call.front.queue.run(RemoveFile(file_id, call.tenant)):
        case "none":
            raise _no_such_file(file_id)
        case "used":
            message = "a batch that has not ended reads this file; cancel the batch first"
            raise Conflict(message, code="file_in_use")
    return FileDeleted(id=file_id)


CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {JSONL: documents.BINARY}}
}


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={**CONTENT, **errors(401, 404, 503)},
)
async def get_file_content(file_id: FileId, call: ByBearer) -> Response:
    """Download a file, as OpenAI's `files.content`."""
    file = await _file(call, file_id)
    chunks = chunks_of(call.front.store, file_key(file.id), file.bytes)
    headers = {"Content-Length": str(file.bytes)}
    return StreamingResponse(chunks, headers=headers, media_type=JSONL)


async def _file(call: Call, file_id: str) -> StoredFile:
    """Return a tenant's file by its id. Raises: NotFound."""
    file = await call.front.queue.file(file_id, call.tenant)
    if file is None:
        raise _no_such_file(file_id)
    return file


def _no_such_file(file_id: str) -> NotFound:
    message = f"there is no file {file_id[:80]!r}; it was deleted, has expired, or never existed"
    return NotFound(message, code="file_not_found")


ENDPOINT = CompatibleEndpoint(router, bodies=(FileForm,), error_forms={PREFIX: openai_error})
