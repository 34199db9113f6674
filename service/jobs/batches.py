"""Records of batches and files: owner, driver lease, and progress of each line of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from redis.exceptions import RedisError

from service.jobs.model.batch import (
    SENT_WITH,
    STRUCTURED,
    Batch,
    BatchState,
    StoredFile,
    batch_fields,
)
from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient, Unconfirmed
from service.jobs.scripts.script import TEXT, Script, ScriptWithoutAnswer
from service.settings.tenants import TenantSettings

FORGET_AT_ONCE = 100
"""Maximum number of batches, and of files, that one call removes."""
ENDS = frozenset({"completed", "failed"})
"""Outcomes of a line that has ended."""

Removed = Literal["removed", "none", "used"]
FileRecorded = Literal["recorded", "full", "quota"]
BatchRecorded = Literal["recorded", "full", "no_room", "no_file"]


@dataclass(frozen=True)
class RecordFile(Script[FileRecorded]):
    """Script call that records a file whose bytes are stored."""

    file: str
    tenant: str
    purpose: str
    expires_at: float
    bytes: int
    max_files: int | None
    stored_bytes: int | None
    record: str = field(metadata=TEXT)
    """Record of the file, as JSON."""

    @staticmethod
    def parse(answer: Any) -> FileRecorded:
        """Parse the outcome of recording a file."""
        outcome: FileRecorded = answer
        return outcome


@dataclass(frozen=True)
class RemoveFile(Script[Removed]):
    """Script call that removes a file unless an open batch uses it; `reap` returns its keys."""

    file: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> Removed:
        """Parse the outcome of removing a file."""
        outcome: Removed = answer
        return outcome


@dataclass(frozen=True)
class RecordBatch(Script[BatchRecorded]):
    """Script call that records a new batch."""

    batch: str
    tenant: str
    file: str
    """Id of the file with its requests."""
    window_s: float
    max_open: int
    max_files: int
    fields: Sequence[str] = field(metadata=TEXT)
    """Further fields of the batch's hash: name, value, …"""

    @staticmethod
    def parse(answer: Any) -> BatchRecorded:
        """Parse the outcome of recording a batch."""
        outcome: BatchRecorded = answer
        return outcome


@dataclass(frozen=True)
class TakeBatch(Script["str | None"]):
    """Script call that acquires the lease of a batch without a driver."""

    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> str | None:
        """Return the batch's id, or None if there is none."""
        return answer or None


@dataclass(frozen=True)
class KeepBatch(Script["BatchState | None"]):
    """Script call that renews the lease of a batch."""

    batch: str
    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return the batch's state, or None if the lease was lost or the batch has ended."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class MoveBatch(Script["BatchState | None"]):
    """Script call that moves a batch to its next state."""

    batch: str
    holder: str
    state: str
    ends: bool
    """True for an end state."""
    fields: Sequence[str] = field(metadata=TEXT)
    """Fields to set: name, value, …"""

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return the batch's state now, or None if the lease was lost."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class RecordLine(Script[bool]):
    """Script call that records the job of a batch's line, or the line's outcome."""

    batch: str
    holder: str
    line: int
    outcome: str
    """Id of its job; `completed` or `failed` once it has ended."""
    bytes: int = 0
    """Size of its stored result."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the caller still has the batch's lease."""
        return bool(answer)


@dataclass(frozen=True)
class CancelBatch(Script["BatchState | None"]):
    """Script call that requests the cancellation of a batch."""

    batch: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return the batch's state now, or None if there is no such batch."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class RemoveBatch(Script[bool]):
    """Script call that removes a batch that has ended."""

    batch: str
    tenant: str

    @staticmethod
    def parse(answer: str) -> bool:
        """Return whether the batch is gone; False: it has not ended."""
        return answer != "open"


@dataclass(frozen=True)
class ReleaseBatch(ScriptWithoutAnswer):
    """Script call that releases the lease of a batch, so that another front end can continue it."""

    batch: str
    holder: str


@dataclass(frozen=True)
class ForgetBatches(ScriptWithoutAnswer):
    """Script call that removes batches and files past their retention."""

    retention_s: float
    most: int = FORGET_AT_ONCE
    """Maximum number of batches, and of files, per call."""


class BatchRecords(QueueClient):
    """Part of a `Queue` with which front ends manage batches and files."""

    async def record_file(
        self,
        file: StoredFile,
        max_files: int | None = None,
        limits: TenantSettings | None = None,
    ) -> bool:
        """Record a file whose bytes are stored.

        Args:
            max_files: limit of the tenant's files, including the results of its open batches; None:
                none.
            limits: the tenant's settings, for its quota of stored bytes; None: no quota.

        Returns: False if the tenant has as many files as it may have.

        Raises: QuotaExceeded: the file exceeds the tenant's quota of stored bytes.
        """
        recorded = await self.run_confirmed(
            RecordFile(
                file=file.id,
                tenant=file.tenant,
                purpose=file.purpose,
                expires_at=file.expires_at,
                bytes=file.bytes,
                max_files=max_files,
                stored_bytes=limits.stored_bytes if limits else None,
                record=file.model_dump_json(),
            )
        )
        if recorded == "quota" and limits:
            raise await self.storage_quota_exceeded(file.tenant, limits)
        return recorded == "recorded"

    async def file(self, file_id: str, tenant: str) -> StoredFile | None:
        """Return a tenant's file, or None if the tenant has no file with this id."""
        record = await self._redis.hget(keys.file(file_id), "record")
        file = StoredFile.model_validate_json(record) if record else None
        return file if file and file.tenant == tenant else None

    async def files(self, tenant: str) -> list[StoredFile]:
        """Return a tenant's files, newest first."""
        ids = await self._ids(keys.files(tenant))
        files = [await self.file(file_id, tenant) for file_id in ids]
        return [file for file in files if file]

    async def record_batch(
        self, batch: Batch, window_s: float, max_open: int, max_files: int
    ) -> BatchRecorded:
        """Record a new batch in Redis.

        Raises: Unconfirmed: replicas may lack it. The batch is canceled if the server can be
        reached.
        """
        sent_with = batch.model_dump(include=SENT_WITH, exclude_none=True)
        fields = {**batch_fields(batch), **sent_with, "metadata": json.dumps(batch.metadata)}
        record = RecordBatch(
            batch=batch.id,
            tenant=batch.tenant,
            file=batch.input_file_id,
            window_s=window_s,
            max_open=max_open,
            max_files=max_files,
            fields=_flat(fields),
        )
        try:
            return await self.run_confirmed(record)
        except Unconfirmed:
            with suppress(RedisError, OSError):
                await self.run(CancelBatch(batch.id, batch.tenant))
            raise

    async def batch(self, batch_id: str, tenant: str | None = None) -> Batch | None:
        """Return a batch, or None if no such batch exists or it belongs to another tenant."""
        fields = cast(dict[str, str], await self._redis.hgetall(keys.batch(batch_id)))
        if not fields or tenant not in (None, fields["tenant"]):
            return None
        return Batch.model_validate(
            {
                name: json.loads(text) if name in STRUCTURED else text
                for name, text in fields.items()
            }
        )

    async def batches(self, tenant: str) -> list[str]:
        """Return the ids of a tenant's batches, newest first."""
        return await self._ids(keys.batches(tenant))

    async def _ids(self, ordered: str) -> list[str]:
        """Return the members of a sorted set in Redis in descending order."""
        return cast(list[str], await self._redis.zrange(ordered, 0, -1, desc=True))

    async def take_batch(self, holder: str, lease_s: float) -> Batch | None:
        """Acquire the lease of a batch without a driver, or return None if there is none."""
        batch_id = await self.run(TakeBatch(holder, lease_s))
        return await self.batch(batch_id) if batch_id else None

    async def move_batch(
        self, batch_id: str, holder: str, state: BatchState, **fields: object
    ) -> BatchState | None:
        """Move a batch to a state; return its state afterwards, or None if the lease was lost."""
        return await self.run(
            MoveBatch(batch_id, holder, state, ends=state.has_ended, fields=_flat(fields))
        )

    async def lines(self, batch_id: str) -> dict[int, str]:
        """Return the job id or outcome of each line of an open batch, by line number."""
        outcomes = cast(dict[str, str], await self._redis.hgetall(keys.batch_lines(batch_id)))
        return {int(line): outcome for line, outcome in outcomes.items()}


def _flat(fields: Mapping[str, Any]) -> list[str]:
    return [text for name, value in fields.items() for text in (name, str(value))]
