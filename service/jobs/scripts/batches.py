"""Calls of the scripts for batches and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.jobs.model.batch import BatchState
from service.jobs.scripts.script import TEXT, Script, ScriptWithoutAnswer

Removed = Literal["removed", "none", "used"]
FileRecorded = Literal["recorded", "full", "quota"]
BatchRecorded = Literal["recorded", "full", "no_room", "no_file"]


@dataclass(frozen=True)
class RecordFile(Script[FileRecorded]):
    """Record a file whose bytes are stored."""

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
        """Return the outcome."""
        outcome: FileRecorded = answer
        return outcome


@dataclass(frozen=True)
class RemoveFile(Script[Removed]):
    """Remove a file unless an open batch uses it."""

    file: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> Removed:
        """Return the outcome."""
        outcome: Removed = answer
        return outcome


@dataclass(frozen=True)
class RecordBatch(Script[BatchRecorded]):
    """Record a new batch."""

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
        """Return the outcome."""
        outcome: BatchRecorded = answer
        return outcome


@dataclass(frozen=True)
class TakeBatch(Script["str | None"]):
    """Acquire the lease of a batch without a driver."""

    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> str | None:
        """Return the batch's id, or None if there is none."""
        return answer or None


@dataclass(frozen=True)
class KeepBatch(Script["BatchState | None"]):
    """Renew the lease of a batch."""

    batch: str
    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return the batch's state, or None if the lease was lost or the batch has ended."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class MoveBatch(Script["BatchState | None"]):
    """Move a batch to its next state."""

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
    """Record the job of a batch's line, or the line's outcome."""

    batch: str
    holder: str
    line: int
    outcome: str
    """Id of its job; `completed` or `failed` once it has ended."""
    bytes: int
    """Size of its stored result."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the caller still has the batch's lease."""
        return bool(answer)


@dataclass(frozen=True)
class CancelBatch(Script["BatchState | None"]):
    """Request the cancellation of a batch."""

    batch: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return the batch's state now, or None if there is no such batch."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class ReleaseBatch(ScriptWithoutAnswer):
    """Release the lease of a batch so that another front end can continue it."""

    batch: str
    holder: str


@dataclass(frozen=True)
class ForgetBatches(ScriptWithoutAnswer):
    """Remove batches and files past their retention."""

    retention_s: float
    most: int
    """Maximum number of batches, and of files, per call."""
