"""Scripts about records of uploaded adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from models.spec.lora import Lora
from service.jobs.scripts.script import TEXT, Script


class LoraOutcome(NamedTuple):
    """Outcome of a `RecordLora`."""

    outcome: Literal["recorded", "taken", "full", "quota"]
    """`taken`: another adapter has that name; `full`: the tenant has as many as it may have;
    `quota`: it may not have so many bytes."""
    there: Lora | None
    """The adapter of that name, where there is one."""


@dataclass(frozen=True)
class RecordLora(Script[LoraOutcome]):
    """Record an adapter whose file is stored."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    bytes: int
    preview: str
    """Key of its image; empty: it has none."""
    preview_bytes: int
    max_loras: int
    stored_bytes: int | None
    record: str = field(metadata=TEXT)
    """The adapter as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> LoraOutcome:
        """Return what became of it."""
        outcome, *record = answer
        return LoraOutcome(outcome, Lora.model_validate_json(record[0]) if record else None)


class LoraRemoved(NamedTuple):
    """Outcome of a `RemoveLora`."""

    is_shared: bool
    """True if another record of the tenant has the same file."""
    preview_bytes: int
    """Size of its image, as it was counted."""


@dataclass(frozen=True)
class RemoveLora(Script[LoraRemoved]):
    """Remove an adapter's record."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    preview: str
    """Key of its image; empty: it has none."""
    record: str = field(metadata=TEXT)
    """The adapter as JSON: another one of that name stays."""

    @staticmethod
    def parse(answer: Sequence[int]) -> LoraRemoved:
        """Return what became of it."""
        is_shared, preview_bytes = answer
        return LoraRemoved(bool(is_shared), preview_bytes)
