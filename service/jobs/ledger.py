"""Usage ledger in Redis: moving its records to files in the store, and reading its sums."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from typing import cast

from service.jobs.redis import keys
from service.jobs.scripts.client import QueueClient
from service.jobs.scripts.ledger import LedgerFile, ReadTotals, TakeLedger, Totals, TrimLedger
from service.settings.usage import UsageSettings

MAX_RECORDS = 10_000
"""Maximum number of records per file. Redis finds the last of so many within some milliseconds."""
PAGE = 1000
"""Number of records read per command."""
SETTLE_S = 5.0
"""Delay after a period's end before its file is due. Redis writes to disk every second, and records
that a power loss reverts must not be in the store already."""


Page = list[tuple[str, dict[str, str]]]


class LedgerRecords(QueueClient):
    """Part of a `Queue` that moves the ledger to the store."""

    async def take_ledger(
        self, holder: str, lease_s: float, usage: UsageSettings
    ) -> LedgerFile | None:
        """Acquire the next due file; None: none is due, or another front end writes it."""
        return await self._run(
            TakeLedger(holder, lease_s, usage.file_every_s, SETTLE_S, MAX_RECORDS)
        )

    async def ledger_lines(self, file: LedgerFile) -> bytes | None:
        """Return a file's content, identical for every caller.

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

    async def trim_ledger(self, file: LedgerFile) -> bool:
        """Remove the records of a stored file from Redis; False: they were removed before."""
        return await self._run(TrimLedger(file.first, file.last))

    async def totals(self) -> Totals:
        """Read the sums of the ledger."""
        return await self._run(ReadTotals())


def _packed(records: Iterable[tuple[str, str]]) -> bytes:
    """Convert records to gzipped JSON lines without a timestamp."""
    lines = (
        json.dumps({"id": entry} | json.loads(text), sort_keys=True) for entry, text in records
    )
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
