"""A batch of requests and its files, as they lie in Redis. Times are seconds since the epoch."""

from __future__ import annotations

import hashlib
import json
import secrets
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Purpose = Literal["batch", "batch_output"]


class BatchState(StrEnum):
    """States of a batch, as OpenAI's clients know them."""

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
        """True for an end state."""
        return self in (self.FAILED, self.COMPLETED, self.EXPIRED, self.CANCELLED)


class StoredFile(BaseModel):
    """File of a tenant: requests of a batch, or results of one."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: int
    expires_at: int


class LineError(BaseModel):
    """Error in one line of a batch's file."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    line: int | None = None
    """Number of the line, from 1."""
    param: str | None = None
    """Field at fault."""


class Batch(BaseModel):
    """Batch of requests."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    state: BatchState = BatchState.VALIDATING
    endpoint: str
    key_id: str | None = None
    """Id of the API key that it was sent with; None: no keys are required."""
    request_id: str | None = None
    """Id of the request that it came with, for the log."""
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0
    expires_at: float = 0.0
    """Time after which what is not done is given up."""
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    total: int = 0
    """Number of its lines, once they are validated."""
    completed: int = 0
    """Lines whose job succeeded."""
    failed: int = 0
    """Lines that were refused, or whose job ended otherwise."""
    errors: list[LineError] = Field(default_factory=list)
    """Reasons why it failed validation."""
    output_file_id: str | None = None
    error_file_id: str | None = None


SENT_WITH = {"key_id", "request_id"}
"""Fields that another request for the same batch may have otherwise."""
STRUCTURED = frozenset({"metadata", "errors"})
"""Fields of a batch that are stored as JSON."""


def new_file_id() -> str:
    """Return a new random id."""
    return "file-" + secrets.token_hex(12)


def new_batch_id(tenant: str, idempotency_key: str | None = None) -> str:
    """Return a new random id; with a key the one that it stands for."""
    if idempotency_key is None:
        return "batch_" + secrets.token_hex(12)
    said = json.dumps([tenant, idempotency_key]).encode()
    return "batch_" + hashlib.sha256(said).hexdigest()[:24]


def batch_fields(batch: Batch) -> dict[str, Any]:
    """Return what a new batch's hash holds, besides times that Redis sets."""
    names = {"id", "tenant", "endpoint", "input_file_id", "completion_window"}
    return batch.model_dump(include=names)
