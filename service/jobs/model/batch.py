"""Batches of requests and their files, as stored in Redis. Times are seconds since the epoch."""

from __future__ import annotations

import hashlib
import json
import secrets
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Purpose = Literal["batch", "batch_output"]


class BatchState(StrEnum):
    """States of a batch in OpenAI's Batch API."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """True if the batch has ended."""
        return self in (self.FAILED, self.COMPLETED, self.EXPIRED, self.CANCELLED)


class StoredFile(BaseModel):
    """Uploaded file with a batch's requests, or file with a batch's results."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int


class LineError(BaseModel):
    """Validation error in one line of a batch's file."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    line: int | None = None
    """Number of the line, from 1."""
    param: str | None = None
    """Invalid field."""


class Batch(BaseModel):
    """Batch of requests from one file, with its state, times and counts."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    state: BatchState = BatchState.VALIDATING
    endpoint: str
    key_id: str | None = None
    """Id of the API key that submitted it; None: no keys are required."""
    request_id: str | None = None
    """Id of the HTTP request that submitted it, for the log."""
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0
    expires_at: float = 0.0
    """Time at which unfinished lines are given up."""
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    total: int = 0
    """Number of lines, once they are validated."""
    completed: int = 0
    """Number of lines whose job succeeded."""
    failed: int = 0
    """Number of lines that were rejected or whose job ended otherwise."""
    errors: list[LineError] = Field(default_factory=list)
    """Validation errors of a failed batch."""
    output_file_id: str | None = None
    error_file_id: str | None = None


SENT_WITH = {"key_id", "request_id"}
"""Fields that may differ when a client submits the same batch again."""
STRUCTURED = frozenset({"metadata", "errors"})
"""Fields of a batch that are stored as JSON."""


def new_file_id() -> str:
    """Return a new random id for a file."""
    return "file-" + secrets.token_hex(12)


def new_batch_id(tenant: str, idempotency_key: str | None = None) -> str:
    """Return a batch id: random, or derived from the tenant's idempotency key."""
    if idempotency_key is None:
        return "batch_" + secrets.token_hex(12)
    text = json.dumps([tenant, idempotency_key]).encode()
    return "batch_" + hashlib.sha256(text).hexdigest()[:24]


def batch_fields(batch: Batch) -> dict[str, Any]:
    """Return the fields of a new batch's hash, except for times, which Redis sets."""
    names = {"id", "tenant", "endpoint", "input_file_id", "completion_window"}
    return batch.model_dump(include=names)
