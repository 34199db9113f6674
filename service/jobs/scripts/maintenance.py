"""Scripts that reapers run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.jobs.scripts.script import TEXT, Script


class Reaped(NamedTuple):
    """Result of one reap."""

    more: bool
    """True if more is due."""
    files: list[str]
    """Store keys to delete."""
    notes: list[dict[str, Any]]
    """Ends and lapses of jobs, for `tally` and `journey`."""


@dataclass(frozen=True)
class Reap(Script[Reaped]):
    """Take back what lapsed, forget what is over."""

    call: str
    answer_ms: int
    batch: int
    """Jobs of each kind, and notes, at most."""
    files: int
    """Store keys at most."""
    deleted: Sequence[str]
    """Store keys that have left the store."""
    lease_s: float
    silence_s: float
    """Longest time without a reap in which pools could be heard."""
    max_deaths: int
    deposit_s: float
    retention_s: float
    model_retention_s: float
    poisonous: str = field(metadata=TEXT)
    """Error of a job that is set aside, as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> Reaped:
        """Return what was reaped."""
        more, files, notes = answer
        return Reaped(bool(more), files, [json.loads(note) for note in notes])
