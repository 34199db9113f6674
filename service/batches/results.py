"""Results of a batch: one object a line in the store, then two files."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from service.front_end.front_end import FrontEnd
from service.jobs.model.batch import Batch, Purpose, StoredFile
from service.jobs.storage.object_store import file_key, result_key

JSONL = "application/jsonl"
READ_AT_ONCE = 16
"""Results that are read from the store at the same time."""


@dataclass(frozen=True)
class Result:
    """Answer to one line."""

    custom_id: str
    status: int
    body: Mapping[str, Any]
    request_id: str
    """Id of its job; of a line without one that of the line."""

    def text(self, line_id: str) -> bytes:
        """Return the line of the results' file."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        return _line(line_id, self.custom_id, response, None)


def line_id(batch: Batch, number: int) -> str:
    """Return the id of a line, in every file the same."""
    return f"batch_req_{batch.id.removeprefix('batch_')}_{number}"


def given_up(batch: Batch, number: int, custom_id: str, code: str) -> bytes:
    """Return the line of the errors' file about a request that was not done in the end."""
    error = {"code": code, "message": "the request was not done before the batch ended"}
    return _line(line_id(batch, number), custom_id, None, error)


def _line(
    one: str, custom_id: str, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> bytes:
    found = {"id": one, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(found).encode() + b"\n"


async def write_results(
    front: FrontEnd, batch: Batch, numbers: Iterable[int], more: Iterable[bytes], kind: str
) -> str | None:
    """Write the stored results of these lines, and more, to a file; return its id.

    The id follows from the batch: written again, it is the same file. None: there is nothing.

    Raises: StoreError.
    """
    file_id = f"file-{batch.id.removeprefix('batch_')}-{kind}"
    with TemporaryFile(dir=front.settings.state_dir) as file:
        await _collect(front, batch, list(numbers), file)
        await asyncio.to_thread(file.writelines, more)
        size = await asyncio.to_thread(file.tell)
        if not size:
            return None
        await front.queue.deposit(file_id)
        await front.store.put_file(file_key(file_id), file, JSONL)
    name = f"{batch.id}_{kind}.jsonl"
    await front.queue.record_file(
        new_file(front, file_id, batch.tenant, name, "batch_output", size)
    )
    return file_id


async def _collect(front: FrontEnd, batch: Batch, numbers: list[int], file: BinaryIO) -> None:
    for start in range(0, len(numbers), READ_AT_ONCE):
        some = numbers[start : start + READ_AT_ONCE]
        read = (front.store.get(result_key(batch.id, number)) for number in some)
        await asyncio.to_thread(file.writelines, await asyncio.gather(*read))


def new_file(
    front: FrontEnd, file_id: str, tenant: str, filename: str, purpose: Purpose, size: int
) -> StoredFile:
    """Return the record of a file that comes now."""
    now = int(time.time())
    return StoredFile(
        id=file_id,
        tenant=tenant,
        filename=filename,
        purpose=purpose,
        bytes=size,
        created_at=now,
        expires_at=now + int(front.settings.batches.retention_s),
    )
