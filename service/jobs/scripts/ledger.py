"""Scripts about the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from service.jobs.scripts.script import Script


class LedgerFile(NamedTuple):
    """Records that go into one file: ids of the first and the last one."""

    first: str
    last: str


@dataclass(frozen=True)
class Totals:
    """Sums of the ledger, and what waits for the store."""

    sums: Mapping[tuple[str, ...], int]
    """Sums by what they are of, model, tenant class and further labels; device-seconds in
    millionths."""
    pending: int
    """Records that are not in the store yet."""
    oldest_s: float
    """Age of the oldest of these; 0: there is none."""


@dataclass(frozen=True)
class TakeLedger(Script[LedgerFile | None]):
    """Take the next file that is due, to write it."""

    holder: str
    lease_s: float
    file_every_s: float
    settle_s: float
    most: int
    """Records of one file."""

    @staticmethod
    def parse(answer: Sequence[str] | None) -> LedgerFile | None:
        """Return the file; None: none is due."""
        return LedgerFile(*answer) if answer else None


@dataclass(frozen=True)
class TrimLedger(Script[bool]):
    """Drop records whose file is stored; answers whether they were still there."""

    first: str
    last: str

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether they were still there."""
        return bool(answer)


@dataclass(frozen=True)
class ReadTotals(Script[Totals]):
    """Read the sums of the ledger."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> Totals:
        """Return the sums by their names."""
        flat, pending, oldest_s = answer
        sums = zip(flat[::2], flat[1::2], strict=True)
        named = {tuple(json.loads(name)): int(value) for name, value in sums}
        return Totals(named, pending, float(oldest_s))
