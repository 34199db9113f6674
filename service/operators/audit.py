"""Audit log: one object in the store per action of an operator, written before the action.

`audit/2026/01/31/120000.125000-8f3a….json` is written with outcome `begun`, and again with the
final outcome. If the record cannot be written, the act does not happen. If its process crashes, the
outcome stays `begun`. Acts of commands are recorded in Redis first (`commands.py`).
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime

from service.errors.problems import Problem
from service.jobs.storage.errors import NotStored, StoreError
from service.jobs.storage.object_store import Store
from service.schemas.audit import ID_BYTES, AuditRecord

FOLDER = "audit"
MEDIA_TYPE = "application/json"

log = logging.getLogger("atelier")


@dataclass(frozen=True)
class Operator:
    """Operator who performs an action: key, name and address.

    Args:
        key_id: id of the API key; empty: no key was required.
        name: name of the key, or a user of the operating system.
    """

    key_id: str
    name: str
    address: str


class AuditRecorder(ABC):
    """Writer of audit records: before each action, and again with its outcome."""

    @asynccontextmanager
    async def recording(
        self,
        operator: Operator,
        act: str,
        target: str,
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AuditRecord]:
        """Record an operator's action, run the block, and record the outcome.

        Raises: StoreError: the record could not be written, and nothing was done.
        """
        record = AuditRecord(
            id=secrets.token_hex(ID_BYTES),
            at=datetime.now(UTC),
            key_id=operator.key_id,
            name=operator.name,
            address=operator.address,
            act=act,
            target=target,
            reason=reason,
            details=dict(details or {}),
        )
        await self._write(record)
        log.info("%s: %s by %s", act, target, operator.name or operator.address)
        try:
            yield record
        except BaseException as error:
            await self._end(record, {"outcome": "failed", "error": self._error_text(error)})
            raise
        await self._end(record, {"outcome": "done"})

    async def _end(self, record: AuditRecord, update: Mapping[str, str]) -> None:
        try:
            await self._write(record.model_copy(update=update))
        except StoreError as error:
            log.warning("the end of act %s is not in the audit log: %s", record.id, error)

    def _error_text(self, error: BaseException) -> str:
        return error.detail if isinstance(error, Problem) else type(error).__name__

    @abstractmethod
    async def _write(self, record: AuditRecord) -> None:
        """Write or overwrite an operator's audit record. Raises: StoreError."""


class AuditLog(AuditRecorder):
    """Audit log as objects in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of_day(self, day: date) -> list[AuditRecord]:
        """List the audit records of a day (UTC), oldest first. Raises: StoreError."""
        keys = await self._store.below(f"{FOLDER}/{day:%Y/%m/%d}/")
        return [AuditRecord.model_validate_json(await self._store.get(key)) for key in keys]

    async def add(self, record: AuditRecord) -> None:
        """Store a record, unless one with a final outcome exists. Raises: StoreError."""
        try:
            stored = AuditRecord.model_validate_json(await self._store.get(_key(record)))
        except NotStored:
            stored = record
        if stored.outcome == "begun" or stored is record:
            await self._write(record)

    async def _write(self, record: AuditRecord) -> None:
        await self._store.put(_key(record), record.model_dump_json().encode(), MEDIA_TYPE)


def _key(record: AuditRecord) -> str:
    return f"{FOLDER}/{record.at:%Y/%m/%d/%H%M%S.%f}-{record.id}.json"
