"""Scripts about records of uploaded adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from models.spec.lora import Lora
from service.jobs.scripts.script import TEXT, Script


class LoraOutcome(NamedTuple):
    """Outcome of a `RecordLora`."""

    outcome: Literal["recorded", "taken", "full"]
    """`taken`: another adapter has that name; `full`: the tenant has as many as it may have."""
    there: Lora | None
    """The adapter of that name, where there is one."""


@dataclass(frozen=True)
class RecordLora(Script[LoraOutcome]):
    """Record an adapter whose file is stored."""

    tenant: str
    lora: str
    """Name of the adapter."""
    max_loras: int
    record: str = field(metadata=TEXT)
    """The adapter as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> LoraOutcome:
        """Return what became of it."""
        outcome, *record = answer
        return LoraOutcome(outcome, Lora.model_validate_json(record[0]) if record else None)


@dataclass(frozen=True)
class RemoveLora(Script[bool]):
    """Remove an adapter's record."""

    tenant: str
    lora: str
    """Name of the adapter."""
    digest: str
    record: str = field(metadata=TEXT)
    """The adapter as JSON: another one of that name stays."""

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether another record has the same file."""
        return bool(answer)
