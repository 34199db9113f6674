"""`atelier usage`: totals of the billing ledger's files in the store of the settings."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from deploy.admin.api_keys import print_table
from deploy.exit_codes import UsageError
from service.jobs.model.ledger import LedgerRecord
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import LEDGER, MAX_PARALLEL, Store, ledger_ids
from service.settings.installation import how_to_install
from service.settings.settings import Settings

Format = Literal["table", "json", "csv", "parquet"]
MICRO = 1_000_000
COUNTS = ("images", "videos", "frames", "pixels", "steps")
SECONDS = (
    "device_seconds", "tenant_seconds", "house_seconds", "lost_seconds", "compile_seconds",
    "chip_seconds",
)  # fmt: skip

GROUPS: Mapping[str, Callable[[LedgerRecord], str]] = {
    "tenant": lambda record: record.tenant,
    "class": lambda record: record.tenant_class,
    "key": lambda record: record.key or "",
    "model": lambda record: record.served_as or record.model,
    "checkpoint": lambda record: record.checkpoint or "",
    "outcome": lambda record: record.outcome.value,
    "chip": lambda record: record.chip or "",
    "region": lambda record: record.region or "",
    "month": lambda record: f"{_time(record.id):%Y-%m}",
    "day": lambda record: f"{_time(record.id):%Y-%m-%d}",
    "job": lambda record: record.job,
}
"""Grouping keys and their values; empty if a record lacks one."""


@dataclass
class Sums:
    """Totals of some records. Seconds are summed as integer microseconds, so they are exact."""

    jobs: int = 0
    succeeded: int = 0
    images: int = 0
    videos: int = 0
    frames: int = 0
    pixels: int = 0
    steps: int = 0
    micros: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0))

    def add(self, record: LedgerRecord) -> None:
        """Add a record; a correction does not count as a job."""
        self.jobs += not record.is_correction
        is_done = record.outcome.is_done and not record.is_correction
        self.succeeded += is_done
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(record, name))
        for name in SECONDS:
            factor = record.chips if name == "chip_seconds" else 1
            seconds = record.device_seconds if name == "chip_seconds" else getattr(record, name)
            self.micros[name] += round(seconds * factor * MICRO)

    def row(self) -> dict[str, int | float]:
        """Return the totals of usage by column name."""
        counts = {name: getattr(self, name) for name in ("jobs", "succeeded", *COUNTS)}
        return counts | {name: micros / MICRO for name, micros in self.micros.items()}


Row = dict[str, str | int | float]
Id = tuple[int, int]
"""Time of a record in milliseconds, and its number within that millisecond."""


@dataclass(frozen=True)
class Period:
    """Time range of records, in UTC; None: unbounded."""

    begin: datetime | None = None
    end: datetime | None = None

    def has(self, record: Id) -> bool:
        """Return whether a record was written in this period."""
        return not self.is_after(record) and not self.is_before(record)

    def is_after(self, record: Id) -> bool:
        """Return whether this period begins after the record."""
        return self.begin is not None and record[0] < self.begin.timestamp() * 1000

    def is_before(self, record: Id) -> bool:
        """Return whether this period ended before the record."""
        return self.end is not None and record[0] >= self.end.timestamp() * 1000


class File(NamedTuple):
    """File of the ledger, with the ids of its first and last record."""

    first: Id
    last: Id | None
    """Id of the last record; None: the file's name lacks it."""
    key: str


def show(
    settings: Settings, by: Sequence[str], span: Period, form: Format, output: Path | None
) -> None:
    """Write the totals of a period. Raises: UsageError: the store or the file is unusable."""
    try:
        rows = asyncio.run(summed(Store(settings.store_url), by, span))
    except StoreError as error:
        raise UsageError(str(error)) from None
    if form == "parquet":
        return _write_parquet(rows, by, output)
    text = WRITERS[form](rows, by)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)


async def summed(store: Store, by: Sequence[str], span: Period) -> list[Row]:
    """Sum up the ledger by group; rows are sorted. Raises: StoreError, UsageError."""
    groups: defaultdict[tuple[str, ...], Sums] = defaultdict(Sums)
    async for record in records(store, span):
        groups[tuple(GROUPS[name](record) for name in by)].add(record)
    return [
        {**dict(zip(by, names, strict=True)), **groups[names].row()} for names in sorted(groups)
    ]


async def records(store: Store, span: Period) -> AsyncIterator[LedgerRecord]:
    """Yield a period's records, each once, in the order of their files.

    Raises: StoreError, UsageError.
    """
    files = _files(await store.below(LEDGER), span)
    seen: set[Id] = set()
    for start in range(0, len(files), MAX_PARALLEL):
        batch = files[start : start + MAX_PARALLEL]
        texts = await asyncio.gather(*(store.get(file.key) for file in batch))
        for file, data in zip(batch, texts, strict=True):
            # later files cannot repeat earlier ids
            seen = {record_id for record_id in seen if record_id >= file.first}
            for record in _parsed(file.key, data):
                if (number := _order(record.id)) not in seen and span.has(number):
                    yield record
                seen.add(number)


def _files(keys: Iterable[str], span: Period) -> list[File]:
    """Return the files that may have records of a period, sorted by first record.

    If names lack the last record, the newest file that begins before the period may overlap it.
    """
    named = [(key, ids) for key in keys if (ids := ledger_ids(key))]
    files = [
        File(_order(first), _order(last) if last else None, key) for key, (first, last) in named
    ]
    files.sort(key=lambda file: file.first)
    begun = [file for file in files if file.last is None and span.is_after(file.first)][-1:]
    return [
        file
        for file in files
        if not span.is_before(file.first)
        and (file in begun or not span.is_after(file.last or file.first))
    ]


def _parsed(key: str, data: bytes) -> list[LedgerRecord]:
    try:
        lines = gzip.decompress(data).splitlines()
        return [LedgerRecord.model_validate_json(line) for line in lines]
    except (OSError, EOFError, ValidationError) as error:
        text = f"{key} in the store is no file of the ledger, or damaged: restore it from a backup"
        raise UsageError(f"{text} ({type(error).__name__})") from None


def _order(record_id: str) -> Id:
    milliseconds, _, number = record_id.partition("-")
    return int(milliseconds), int(number)


def _time(record_id: str) -> datetime:
    return datetime.fromtimestamp(_order(record_id)[0] / 1000, UTC)


def _json(rows: Sequence[Row], by: Sequence[str]) -> str:
    return json.dumps(rows, indent=1) + "\n"


def _csv(rows: Sequence[Row], by: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, (*by, *Sums().row()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


SHOWN = (
    "jobs",
    "succeeded",
    "images",
    "videos",
    "device_seconds",
    "tenant_seconds",
    "lost_seconds",
)
"""Columns of the printed table; the other formats have all."""


def _table(rows: Sequence[Row], by: Sequence[str]) -> str:
    names = (*by, *SHOWN)
    head = tuple(name.upper().replace("_", " ") for name in names)
    text = io.StringIO()
    print_table(head, *(tuple(map(_cell, (row[name] for name in names))) for row in rows), to=text)
    return text.getvalue()


def _cell(value: str | float) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value) or "-"


WRITERS: Mapping[str, Callable[[Sequence[Row], Sequence[str]], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
}


def _write_parquet(rows: Sequence[Row], by: Sequence[str], output: Path | None) -> None:
    """Write the rows of totals as Parquet. Raises: UsageError."""
    if output is None:
        raise UsageError("--format parquet: name the file by --output")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        text = f"--format parquet: it needs the extra parquet: {how_to_install('parquet')}"
        raise UsageError(f"{text}, or take csv") from None
    kinds = {int: pyarrow.int64(), float: pyarrow.float64()}
    columns = [(name, pyarrow.string()) for name in by]
    columns += [(name, kinds[type(value)]) for name, value in Sums().row().items()]
    table = pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(columns))
    parquet.write_table(table, output)
