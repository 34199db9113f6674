"""Call of the script that reapers run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.jobs.scripts.script import TEXT, Script


class ReapResult(NamedTuple):
    """Result of one reap."""

    more: bool
    """True if more jobs are due."""
    files: list[str]
    """Store keys to delete."""
    notes: list[dict[str, Any]]
    """Notes about ended and lapsed jobs, for `tally` and `job_spans`."""


@dataclass(frozen=True)
class Reap(Script[ReapResult]):
    """Reclaim jobs with lapsed leases; remove jobs past their retention."""

    call: str
    answer_ms: int
    batch: int
    """Maximum number of jobs of each kind, and of notes."""
    files: int
    """Maximum number of store keys."""
    deleted: Sequence[str]
    """Store keys that the caller has deleted."""
    lease_s: float
    silence_s: float
    """Maximum gap between reaps within which workers could reach Redis."""
    max_deaths: int
    deposit_s: float
    retention_s: float
    model_retention_s: float
    poisonous: str = field(metadata=TEXT)
    """Error of a job that crashed too many workers, as JSON."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> ReapResult:
        """Return the result of the reap."""
        more, files, notes = answer
        return ReapResult(bool(more), files, [json.loads(note) for note in notes])
