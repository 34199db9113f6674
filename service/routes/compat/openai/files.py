"""OpenAI's files: what batches read, and what they write.

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
from service.jobs.model.batch import Purpose, StoredFile, new_file_id
from service.jobs.storage.object_store import file_key
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.door import Door
from service.routes.compat.openai.errors import OpenAIError, openai_error
from service.routes.compat.replicate import uploads
from service.schemas.examples import Example, shown
from service.schemas.response import View

PREFIX = "/v1/files"
MAX_PAGE = 10_000
TEXT_BYTES = 256
"""Maximum size of a text of the form."""
EXPIRES = ("expires_after[anchor]", "expires_after[seconds]")
"""Texts that OpenAI's SDK may send; files leave after `batches.retention_s` whatever they say."""

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
    """File as OpenAI's clients read it."""

    model_config = ConfigDict(json_schema_extra=shown(FILE))

    id: str
    """Name of the file in addresses."""
    object: Literal["file"] = "file"
    """Always `file`."""
    bytes: int
    """Size of the file."""
    created_at: int
    """Seconds since the epoch, as in the next one."""
    expires_at: int
    """Time after which the file is deleted."""
    filename: str
    """Name that the client gave it."""
    purpose: Purpose
    """`batch`: requests; `batch_output`: results."""
    status: Literal["processed"] = "processed"
    """Always `processed`: a batch checks its file when it begins."""


class FilePage(View):
    """Page of files."""

    model_config = ConfigDict(
        json_schema_extra=shown(
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
    """Id of the first of them; null: there is none."""
    last_id: str | None = None
    """Id of the last of them: `after` of the next page."""
    has_more: bool
    """True if there is a next page."""


class FileDeleted(View):
    """Deleted file."""

    model_config = ConfigDict(
        json_schema_extra=shown({"id": FILE["id"], "object": "file", "deleted": True})
    )

    id: str
    """Id that the file had."""
    object: Literal["file"] = "file"
    """Always `file`."""
    deleted: Literal[True] = True
    """Always true: else there is an error."""


class FileForm(View):
    """Form of an upload."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra=shown({"file": "@cats.jsonl", "purpose": "batch"})
    )

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """File of requests: JSON, one request a line."""
    purpose: Literal["batch"]
    """Use of the file: batches alone."""
    anchor: Annotated[str | None, Field(alias="expires_after[anchor]")] = None
    """Taken, and without effect, as the next one: files are kept for `batches.retention_s`."""
    seconds: Annotated[str | None, Field(alias="expires_after[seconds]")] = None
    """Taken, and without effect."""


def start_of(ids: Sequence[str], after: str | None) -> int:
    """Return where the page behind an id begins. Raises: NotFound: a list of pages has no such id.

    Else a client that follows pages would begin anew where an item has left meanwhile.
    """
    if after is None:
        return 0
    if after not in ids:
        said = f"there is no {after[:80]!r} in this list; begin anew, without after"
        raise NotFound(said, errors=[FieldError("after", "there is no such id in this list")])
    return ids.index(after) + 1


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe errors of these routes."""
    return documents.errors(OpenAIError, *statuses)


router = APIRouter(prefix=PREFIX, tags=["batches"], dependencies=documented("bearer"))
FORM = {"multipart/form-data": documents.schema_of(FileForm)}
UPLOAD: dict[str, Any] = {
    "responses": errors(400, 401, 409, 413, 415, 429, 503),
    "openapi_extra": {"requestBody": {"required": True, "content": FORM}},
}


@router.post("", response_model=FileView, **UPLOAD)
async def create_file(call: ByBearer) -> FileView | Response:
    """Upload a file of requests for a batch: JSON, one request a line.

    Replicate's client sends an input's image here, as `content`, and is answered with a data URI.
    """
    with call.front.uploads.place(call.client) as place, uploads.receiving(call) as image:
        async with _upload(call) as file:
            texts = {name: MemoryPart(TEXT_BYTES, name) for name in ("purpose", *EXPIRES)}
            parts: dict[str, Part] = {"file": file, **texts, **image.parts}
            await read_form(call.request, parts, arrived=place.arrived)
            place.is_received = True
            if image.is_there:
                return await image.answer()
            _check_form(file, texts["purpose"])
            return _view(await _kept(call, file))


@asynccontextmanager
async def _upload(call: Call) -> AsyncIterator[FilePart]:
    """Hold an upload in a file that has no name, and is gone whatever dies."""
    settings = call.front.settings
    folder = settings.state_dir if settings.state_dir.is_dir() else None
    file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed beside the event loop
    try:
        yield FilePart(settings.batches.max_file_bytes, "a batch's file", file)
    finally:
        await asyncio.to_thread(file.close)


def _check_form(file: FilePart, purpose: MemoryPart) -> None:
    """Raises: Invalid."""
    found = [] if file.is_there else [FieldError("file", "Field required")]
    if purpose.text() != "batch":
        found.append(FieldError("purpose", "must be batch: files serve batches alone"))
    if found:
        raise Invalid(found)


async def _kept(call: Call, part: FilePart) -> StoredFile:
    """Store the file, then record it.

    Raises: Conflict, Busy: the tenant has too many files, or too many bytes; StoreError.
    """
    front, most = call.front, call.front.settings.batches.max_files
    limits = await front.tenants.of(call.tenant)
    name = part.filename or "batch.jsonl"
    file = new_file(front, new_file_id(), call.tenant, name, "batch", part.bytes)
    await front.queue.deposit(file.id)
    await front.store.put_file(file_key(file.id), part.file, JSONL)
    try:
        async with within_quotas(front, call.tenant):
            if not await front.queue.record_file(file, most, limits):
                raise too_many_files(most)
    except Problem:
        await front.store.delete([file_key(file.id)])
        await front.queue.withdraw(file.id)
        raise
    return file


def too_many_files(most: int) -> Conflict:
    """Return the refusal of a file, or of a batch whose results would be files."""
    detail = (
        f"you may have {most} files, two for each batch that has not ended among them, and have as"
        f" many; delete one (DELETE {PREFIX}/ID)"
    )
    return Conflict(detail, code="too_many_files")


def _view(file: StoredFile) -> FileView:
    return FileView(**file.model_dump(exclude={"tenant"}))


@router.get("", responses=errors(400, 401, 404, 503))
async def list_files(
    call: ByBearer,
    purpose: Annotated[Purpose | None, Query(description="Files of this purpose alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Most items of a page.")] = MAX_PAGE,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    order: Annotated[Order, Query(description="By the time they came.")] = "desc",
) -> FilePage:
    """A page of the tenant's files."""
    found = await call.front.queue.files(call.tenant)
    found = [file for file in found if purpose in (None, file.purpose)]
    found = found if order == "desc" else found[::-1]
    start = start_of([file.id for file in found], after)
    shown = [_view(file) for file in found[start : start + limit]]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    has_more = len(found) > start + limit
    return FilePage(data=shown, first_id=first, last_id=last, has_more=has_more)


@router.get("/{file_id}", responses=errors(401, 404, 503))
async def get_file(file_id: FileId, call: ByBearer) -> FileView:
    """One file."""
    return _view(await _file(call, file_id))


@router.delete("/{file_id}", responses=errors(401, 404, 409, 503))
async def delete_file(file_id: FileId, call: ByBearer) -> FileDeleted:
    """Delete a file that no unended batch reads."""
    match await call.front.queue.remove_file(file_id, call.tenant):
        case "none":
            raise _no_such_file(file_id)
        case "used":
            said = "a batch that has not ended reads this file; cancel the batch first"
            raise Conflict(said, code="file_in_use")
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
    """The bytes of a file."""
    file = await _file(call, file_id)
    pieces = chunks_of(call.front.store, file_key(file.id), file.bytes)
    headers = {"Content-Length": str(file.bytes)}
    return StreamingResponse(pieces, headers=headers, media_type=JSONL)


async def _file(call: Call, file_id: str) -> StoredFile:
    """Raises: NotFound."""
    found = await call.front.queue.file(file_id, call.tenant)
    if found is None:
        raise _no_such_file(file_id)
    return found


def _no_such_file(file_id: str) -> NotFound:
    said = (
        f"there is no file {file_id[:80]!r}; it was deleted, has left after its time, or never was"
    )
    return NotFound(said, code="file_not_found")


DOOR = Door(router, bodies=(FileForm,), error_forms={PREFIX: openai_error})
