"""Files of the usage ledger: records in Redis that are due, their content, and the sums."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient
from service.jobs.scripts.script import Script
from service.settings.usage import UsageSettings

MAX_RECORDS = 10_000
"""Maximum number of records per file. Redis finds the last of so many within some milliseconds."""
PAGE = 1000
"""Number of records read per command."""
SETTLE_S = 5.0
"""Delay after a period's end before its file is due. Redis writes to disk every second, and records
that a power loss reverts must not be in the store already."""

Page = list[tuple[str, dict[str, str]]]


class LedgerFile(NamedTuple):
    """Range of ledger records in one file: ids of the first and the last."""

    first: str
    last: str


@dataclass(frozen=True)
class Totals:
    """Sums of the usage ledger, and the records that are not in the store yet."""

    sums: Mapping[tuple[str, ...], int]
    """Sums by quantity, model, tenant class and further labels; device-seconds in millionths."""
    pending: int
    """Number of records that are not in the store yet."""
    oldest_s: float
    """Age of the oldest of these; 0: there is none."""


@dataclass(frozen=True)
class TakeLedger(Script[LedgerFile | None]):
    """Script call that acquires the next due file of the ledger, to write it."""

    holder: str
    lease_s: float
    file_every_s: float
    settle_s: float
    most: int
    """Maximum number of records per file."""

    @staticmethod
    def parse(answer: Sequence[str] | None) -> LedgerFile | None:
        """Return the range of the ledger file, or None if none is due."""
        return LedgerFile(*answer) if answer else None


@dataclass(frozen=True)
class TrimLedger(Script[bool]):
    """Script call that removes ledger records whose file is stored."""

    first: str
    last: str

    @staticmethod
    def parse(answer: Any) -> bool:
        """Return whether the ledger records were still in Redis."""
        return bool(answer)


@dataclass(frozen=True)
class ReadTotals(Script[Totals]):
    """Script call that reads the sums of the ledger."""

    @staticmethod
    def parse(answer: Sequence[Any]) -> Totals:
        """Return the ledger's sums by their labels."""
        flat, pending, oldest_s = answer
        sums = zip(flat[::2], flat[1::2], strict=True)
        named = {tuple(json.loads(name)): int(value) for name, value in sums}
        return Totals(named, pending, float(oldest_s))


class LedgerFiles(QueueClient):
    """Part of a `Queue` that moves the ledger to the store."""

    async def take_ledger(
        self, holder: str, lease_s: float, usage: UsageSettings
    ) -> LedgerFile | None:
        """Acquire the next due ledger file; None: none is due, or another front end writes it."""
        return await self.run(
            TakeLedger(holder, lease_s, usage.file_every_s, SETTLE_S, MAX_RECORDS)
        )

    async def ledger_lines(self, file: LedgerFile) -> bytes | None:
        """Return a ledger file's content, identical for every caller.

        None: its records were trimmed meanwhile.
        """
        records = [record async for record in self._records(file)]
        if not records or records[-1][0] != file.last:
            return None
        return await asyncio.to_thread(_packed, records)

    async def _records(self, file: LedgerFile) -> AsyncIterator[tuple[str, str]]:
        start = file.first
        while True:
            page = cast(Page, await self._redis.xrange(keys.LEDGER, start, file.last, count=PAGE))
            for entry, fields in page:
                yield entry, fields["record"]
            if len(page) < PAGE:
                return
            start = f"({page[-1][0]}"


def _packed(records: Iterable[tuple[str, str]]) -> bytes:
    """Convert ledger records to gzipped JSON lines without a timestamp."""
    lines = (
        json.dumps({"id": entry} | json.loads(text), sort_keys=True) for entry, text in records
    )
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
