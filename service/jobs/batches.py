"""Records of batches and files: owner, driver lease, and progress of each line of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

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
from service.jobs.scripts.batches import (
    BatchRecorded,
    CancelBatch,
    ForgetBatches,
    KeepBatch,
    MoveBatch,
    RecordBatch,
    RecordFile,
    RecordLine,
    ReleaseBatch,
    Removed,
    RemoveFile,
    TakeBatch,
)
from service.jobs.scripts.client import QueueClient
from service.jobs.scripts.runner import Unconfirmed
from service.settings.tenants import TenantSettings

FORGET_AT_ONCE = 100
"""Maximum number of batches, and of files, that one call removes."""
ENDS = frozenset({"completed", "failed"})
"""Outcomes of a line that has ended."""


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
        recorded = await self._accept(
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

    async def remove_file(self, file_id: str, tenant: str) -> Removed:
        """Remove a tenant's file; `reap` returns its store keys for deletion."""
        return await self._run(RemoveFile(file_id, tenant))

    async def record_batch(
        self, batch: Batch, window_s: float, max_open: int, max_files: int
    ) -> BatchRecorded:
        """Record a new batch.

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
            return await self._accept(record)
        except Unconfirmed:
            with suppress(RedisError, OSError):
                await self.cancel_batch(batch.id, batch.tenant)
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
        """Return the members of a sorted set in descending order."""
        return cast(list[str], await self._redis.zrange(ordered, 0, -1, desc=True))

    async def cancel_batch(self, batch_id: str, tenant: str) -> BatchState | None:
        """Request a batch's cancellation; return its state, or None if there is no such batch."""
        return await self._run(CancelBatch(batch_id, tenant))

    async def take_batch(self, holder: str, lease_s: float) -> Batch | None:
        """Acquire the lease of a batch without a driver, or return None if there is none."""
        batch_id = await self._run(TakeBatch(holder, lease_s))
        return await self.batch(batch_id) if batch_id else None

    async def keep_batch(self, batch_id: str, holder: str, lease_s: float) -> BatchState | None:
        """Renew the lease of a batch; return its state, or None if the lease was lost."""
        return await self._run(KeepBatch(batch_id, holder, lease_s))

    async def release_batch(self, batch_id: str, holder: str) -> None:
        """Release the lease of a batch so that another front end can continue it."""
        await self._run(ReleaseBatch(batch_id, holder))

    async def move_batch(
        self, batch_id: str, holder: str, state: BatchState, **fields: object
    ) -> BatchState | None:
        """Move a batch to a state; return its state afterwards, or None if the lease was lost."""
        return await self._run(
            MoveBatch(batch_id, holder, state, ends=state.has_ended, fields=_flat(fields))
        )

    async def record_line(
        self, batch_id: str, holder: str, line: int, outcome: str, result_bytes: int = 0
    ) -> bool:
        """Record a line's job id, or its outcome and result size. False: the lease was lost."""
        return await self._run(RecordLine(batch_id, holder, line, outcome, result_bytes))

    async def lines(self, batch_id: str) -> dict[int, str]:
        """Return the job id or outcome of each line of an open batch, by line number."""
        outcomes = cast(dict[str, str], await self._redis.hgetall(keys.batch_lines(batch_id)))
        return {int(line): outcome for line, outcome in outcomes.items()}

    async def forget_batches(self, retention_s: float) -> None:
        """Remove batches and files past their retention."""
        await self._run(ForgetBatches(retention_s, FORGET_AT_ONCE))


def _flat(fields: Mapping[str, Any]) -> list[str]:
    return [text for name, value in fields.items() for text in (name, str(value))]
