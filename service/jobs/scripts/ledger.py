"""Calls of the scripts for the usage ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.jobs.scripts.script import Script


class LedgerFile(NamedTuple):
    """Range of records in one file: ids of the first and the last."""

    first: str
    last: str


@dataclass(frozen=True)
class Totals:
    """Sums of the ledger, and the records that are not in the store yet."""

    sums: Mapping[tuple[str, ...], int]
    """Sums by quantity, model, tenant class and further labels; device-seconds in millionths."""
    pending: int
    """Number of records that are not in the store yet."""
    oldest_s: float
    """Age of the oldest of these; 0: there is none."""


@dataclass(frozen=True)
class TakeLedger(Script[LedgerFile | None]):
    """Acquire the next due file, to write it."""

    holder: str
    lease_s: float
    file_every_s: float
    settle_s: float
    most: int
    """Maximum number of records per file."""

    @staticmethod
    def parse(answer: Sequence[str] | None) -> LedgerFile | None:
        """Return the file, or None if none is due."""
        return LedgerFile(*answer) if answer else None


@dataclass(frozen=True)
class TrimLedger(Script[bool]):
    """Remove records whose file is stored."""

    first: str
    last: str

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the records were still in Redis."""
        return bool(answer)


@dataclass(frozen=True)
class ReadTotals(Script[Totals]):
    """Read the sums of the ledger."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> Totals:
        """Return the sums by their labels."""
        flat, pending, oldest_s = answer
        sums = zip(flat[::2], flat[1::2], strict=True)
        named = {tuple(json.loads(name)): int(value) for name, value in sums}
        return Totals(named, pending, float(oldest_s))
