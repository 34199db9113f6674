"""The ledger in Redis: records that wait for their file in the store, and what all sum up to."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from typing import cast

from service.jobs.redis import keys
from service.jobs.scripts.client import Calls
from service.jobs.scripts.ledger import LedgerFile, ReadTotals, TakeLedger, Totals, TrimLedger
from service.settings.usage import UsageSettings

MOST_RECORDS = 10_000
"""Records of one file: Redis names the last one of so many within some milliseconds."""
PAGE = 1000
"""Records that are read at once."""
SETTLE_S = 5.0
"""Time after a period's end: Redis writes what it knows to its disk every second, and what a loss
of power takes back must not be in the store already."""


Page = list[tuple[str, dict[str, str]]]


class LedgerRecords(Calls):
    """Part of a `Queue` that moves the ledger to the store."""

    async def take_ledger(
        self, holder: str, lease_s: float, usage: UsageSettings
    ) -> LedgerFile | None:
        """Take the next file that is due; None: none is, or another front end writes it."""
        return await self._run(
            TakeLedger(holder, lease_s, usage.file_every_s, SETTLE_S, MOST_RECORDS)
        )

    async def ledger_lines(self, file: LedgerFile) -> bytes | None:
        """Return a file's content: the same bytes whoever asks; None: it was trimmed meanwhile."""
        records = [found async for found in self._records(file)]
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
        """Drop the records of a file that is stored; False: they had left before."""
        return await self._run(TrimLedger(file.first, file.last))

    async def totals(self) -> Totals:
        """Read the sums of the ledger."""
        return await self._run(ReadTotals())


def _packed(records: Iterable[tuple[str, str]]) -> bytes:
    lines = (
        json.dumps({"id": entry} | json.loads(text), sort_keys=True) for entry, text in records
    )
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
