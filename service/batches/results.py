"""Results of a batch: one stored object per line, then an output file and an error file."""

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
from service.jobs.producer import Deposit
from service.jobs.storage.object_store import file_key, result_key

JSONL = "application/jsonl"
READ_AT_ONCE = 16
"""Number of results read from the store concurrently."""


@dataclass(frozen=True)
class Result:
    """Result of one batch line: HTTP status and response body."""

    custom_id: str
    status: int
    body: Mapping[str, Any]
    request_id: str
    """Id of the line's job; the batch's id if the line has no job."""

    def text(self, line_id: str) -> bytes:
        """Format the result as a line of the output file."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        return _line(line_id, self.custom_id, response, None)


def line_id(batch: Batch, number: int) -> str:
    """Return the id of a batch's line, identical in every file."""
    return f"batch_req_{batch.id.removeprefix('batch_')}_{number}"


def unfinished_line(batch: Batch, number: int, custom_id: str, code: str) -> bytes:
    """Format the error-file line of a request that had not ended with its batch."""
    error = {"code": code, "message": "the batch ended before the request finished"}
    return _line(line_id(batch, number), custom_id, None, error)


def _line(
    line_id: str,
    custom_id: str,
    response: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None,
) -> bytes:
    record = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(record).encode() + b"\n"


async def write_results(
    front: FrontEnd, batch: Batch, numbers: Iterable[int], more: Iterable[bytes], kind: str
) -> str | None:
    """Write the stored results of these lines, and `more` lines, to a file; return its id.

    The id is derived from the batch, so that a repeated write replaces the file. None: there are no
    lines.

    Raises: StoreError.
    """
    file_id = f"file-{batch.id.removeprefix('batch_')}-{kind}"
    with TemporaryFile(dir=front.settings.state_dir) as file:
        await _collect(front, batch, list(numbers), file)
        await asyncio.to_thread(file.writelines, more)
        size = await asyncio.to_thread(file.tell)
        if not size:
            return None
        await front.queue.run(Deposit(file_id))
        await front.store.put_file(file_key(file_id), file, JSONL)
    name = f"{batch.id}_{kind}.jsonl"
    await front.queue.record_file(
        new_file(front, file_id, batch.tenant, name, "batch_output", size)
    )
    return file_id


async def _collect(front: FrontEnd, batch: Batch, numbers: list[int], file: BinaryIO) -> None:
    for start in range(0, len(numbers), READ_AT_ONCE):
        chunk = numbers[start : start + READ_AT_ONCE]
        reads = (front.store.get(result_key(batch.id, number)) for number in chunk)
        await asyncio.to_thread(file.writelines, await asyncio.gather(*reads))


def new_file(
    front: FrontEnd, file_id: str, tenant: str, filename: str, purpose: Purpose, size: int
) -> StoredFile:
    """Build the record of a new file, created now."""
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
