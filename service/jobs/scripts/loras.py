"""Calls of the scripts for records of uploaded adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from models.spec.lora import Lora
from service.jobs.scripts.script import TEXT, Script


class LoraOutcome(NamedTuple):
    """Outcome of a `RecordLora`."""

    outcome: Literal["recorded", "taken", "full", "quota"]
    """`taken`: another adapter has the name; `full`: the tenant has as many adapters as it may
    have; `quota`: the file exceeds the quota of stored bytes."""
    existing: Lora | None
    """Existing adapter with the name, if any."""


@dataclass(frozen=True)
class RecordLora(Script[LoraOutcome]):
    """Record an adapter whose file is stored."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    bytes: int
    preview: str
    """Key of its preview image; empty: none."""
    preview_bytes: int
    max_loras: int
    stored_bytes: int | None
    record: str = field(metadata=TEXT)
    """Record of the adapter, as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> LoraOutcome:
        """Return the outcome and the record."""
        outcome, *record = answer
        return LoraOutcome(outcome, Lora.model_validate_json(record[0]) if record else None)


class RemovalOutcome(NamedTuple):
    """Outcome of a `RemoveLora`."""

    is_shared: bool
    """True if another record of the tenant has the same file."""
    preview_bytes: int
    """Size of its preview image that was subtracted from the stored bytes."""


@dataclass(frozen=True)
class RemoveLora(Script[RemovalOutcome]):
    """Remove an adapter's record."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    preview: str
    """Key of its preview image; empty: none."""
    record: str = field(metadata=TEXT)
    """Record of the adapter, as JSON; a different record with this name is kept."""

    @staticmethod
    def parse(answer: Sequence[int]) -> RemovalOutcome:
        """Return whether the file is shared, and the size of the preview image."""
        is_shared, preview_bytes = answer
        return RemovalOutcome(bool(is_shared), preview_bytes)
