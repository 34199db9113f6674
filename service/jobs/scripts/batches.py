"""Scripts about batches and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from service.jobs.model.batch import BatchState
from service.jobs.scripts.script import TEXT, Script, Silent

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
    """The file as JSON."""

    @staticmethod
    def parse(answer: Any) -> FileRecorded:
        """Return what became of it."""
        found: FileRecorded = answer
        return found


@dataclass(frozen=True)
class RemoveFile(Script[Removed]):
    """Remove a file that no batch needs any more."""

    file: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> Removed:
        """Return what became of it."""
        found: Removed = answer
        return found


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
    """Fields besides: name, value, …"""

    @staticmethod
    def parse(answer: Any) -> BatchRecorded:
        """Return what became of it."""
        found: BatchRecorded = answer
        return found


@dataclass(frozen=True)
class TakeBatch(Script["str | None"]):
    """Take a batch that nobody drives."""

    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> str | None:
        """Return its id; None: there is none."""
        return answer or None


@dataclass(frozen=True)
class KeepBatch(Script["BatchState | None"]):
    """Renew the lease of a batch."""

    batch: str
    holder: str
    lease_s: float

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return its state; None: another one drives it, or it has ended."""
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
        """Return its state now; None: another one drives it."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class RecordLine(Script[bool]):
    """Record the job of a line, or its end."""

    batch: str
    holder: str
    line: int
    outcome: str
    """Id of its job; `completed` or `failed` once it has ended."""
    bytes: int
    """Size of its stored result."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the batch is still ours."""
        return bool(answer)


@dataclass(frozen=True)
class CancelBatch(Script["BatchState | None"]):
    """Ask for the end of a batch."""

    batch: str
    tenant: str

    @staticmethod
    def parse(answer: Any) -> BatchState | None:
        """Return its state now; None: there is no such batch."""
        return BatchState(answer) if answer else None


@dataclass(frozen=True)
class ReleaseBatch(Silent):
    """Give a batch back for another front end to go on."""

    batch: str
    holder: str


@dataclass(frozen=True)
class ForgetBatches(Silent):
    """Forget batches and files past their time."""

    retention_s: float
    most: int
