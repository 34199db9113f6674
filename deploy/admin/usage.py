"""`atelier usage`: totals of the billing ledger's files in the store of the settings."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from deploy.admin.api_keys import print_table
from deploy.admin.prices import Machine
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

COST = "cost"
"""Column of the price of all chip-seconds."""
Prices = Mapping[Machine, float]

GROUPS: Mapping[str, Callable[[LedgerRecord], str]] = {
    "tenant": lambda record: record.tenant,
    "class": lambda record: record.tenant_class,
    "key": lambda record: record.key or "",
    "model": lambda record: record.served_as or record.model,
    "checkpoint": lambda record: record.checkpoint or "",
    "outcome": lambda record: record.outcome.value,
    "chip": lambda record: record.chip or "",
    "spot": lambda record: str(record.spot).lower(),
    "pool": lambda record: record.pool or "",
    "region": lambda record: record.region or "",
    "month": lambda record: f"{_time(record.id):%Y-%m}",
    "day": lambda record: f"{_time(record.id):%Y-%m-%d}",
    "job": lambda record: record.job,
}
"""Grouping keys and their values; empty if a record lacks one."""


@dataclass
class Sums:
    """Totals of usage records. Seconds are summed as integer microseconds, so they are exact."""

    jobs: int = 0
    succeeded: int = 0
    images: int = 0
    videos: int = 0
    frames: int = 0
    pixels: int = 0
    steps: int = 0
    micros: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SECONDS, 0))
    machines: Counter[Machine] = field(default_factory=Counter)
    """Chip-microseconds by machine."""

    def add(self, record: LedgerRecord) -> None:
        """Add a usage record to the totals; a correction does not count as a job."""
        self.jobs += not record.is_correction
        is_done = record.outcome.is_done and not record.is_correction
        self.succeeded += is_done
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(record, name))
        for name in SECONDS:
            factor = record.chips if name == "chip_seconds" else 1
            seconds = record.device_seconds if name == "chip_seconds" else getattr(record, name)
            self.micros[name] += round(seconds * factor * MICRO)
        chip_micros = round(record.device_seconds * record.chips * MICRO)
        if chip_micros:
            self.machines[record.chip or "", record.spot] += chip_micros

    def row(self) -> dict[str, int | float]:
        """Return the totals of usage by column name, for a row of the report."""
        counts = {name: getattr(self, name) for name in ("jobs", "succeeded", *COUNTS)}
        return counts | {name: micros / MICRO for name, micros in self.micros.items()}

    def cost(self, prices: Prices) -> float | None:
        """Return the price of the chip-seconds; None: a machine has no price."""
        if not prices.keys() >= self.machines.keys():
            return None
        hours = {machine: micros / MICRO / 3600 for machine, micros in self.machines.items()}
        return sum((hours[machine] * prices[machine] for machine in hours), 0.0)


Row = dict[str, str | int | float | None]
Id = tuple[int, int]
"""Time of a record in milliseconds, and its number within that millisecond."""


@dataclass(frozen=True)
class Period:
    """Time range of a usage report, in UTC; None: unbounded."""

    begin: datetime | None = None
    end: datetime | None = None

    def has(self, record: Id) -> bool:
        """Return whether a usage record was written in this period."""
        return not self.is_after(record) and not self.is_before(record)

    def is_after(self, record: Id) -> bool:
        """Return whether this period begins after the usage record."""
        return self.begin is not None and record[0] < self.begin.timestamp() * 1000

    def is_before(self, record: Id) -> bool:
        """Return whether this period ended before the usage record."""
        return self.end is not None and record[0] >= self.end.timestamp() * 1000


class File(NamedTuple):
    """File of the usage ledger, with the ids of its first and last record."""

    first: Id
    last: Id | None
    """Id of the last record; None: the file's name lacks it."""
    key: str


@dataclass(frozen=True)
class Report:
    """Options of a usage report: its grouping keys, period, output format and prices."""

    by: Sequence[str]
    """Grouping keys."""
    span: Period
    form: Format
    prices: Prices | None = None
    """Prices per chip and hour; None: no costs."""

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the cost columns of the report; empty without prices."""
        return () if self.prices is None else (COST,)


def show(settings: Settings, report: Report, output: Path | None) -> None:
    """Write the totals of a period; report chips without a price on standard error.

    Raises: UsageError: the store or the file is unusable.
    """
    try:
        groups = asyncio.run(summed(Store(settings.store_url), report))
    except StoreError as error:
        raise UsageError(str(error)) from None
    rows = [_row(report, names, groups[names]) for names in sorted(groups)]
    for line in _unpriced(report, groups.values()):
        print(line, file=sys.stderr)
    if report.form == "parquet":
        return _write_parquet(rows, report, output)
    text = WRITERS[report.form](rows, report)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)


async def summed(store: Store, report: Report) -> Mapping[tuple[str, ...], Sums]:
    """Sum up the usage ledger by the report's groups. Raises: StoreError, UsageError."""
    groups: defaultdict[tuple[str, ...], Sums] = defaultdict(Sums)
    async for record in records(store, report.span):
        groups[tuple(GROUPS[name](record) for name in report.by)].add(record)
    return groups


def _row(report: Report, names: Sequence[str], sums: Sums) -> Row:
    """Return the report's row of one group: its keys, totals and cost."""
    row: Row = {**dict(zip(report.by, names, strict=True)), **sums.row()}
    return row if report.prices is None else row | {COST: sums.cost(report.prices)}


def _unpriced(report: Report, groups: Iterable[Sums]) -> Iterator[str]:
    """Yield a warning for each kind of machine that was used and has no price."""
    if report.prices is None:
        return
    for chip, is_spot in sorted({*chain.from_iterable(sums.machines for sums in groups)}):
        if (chip, is_spot) not in report.prices:
            where = "on spot machines" if is_spot else "on machines that are not spot"
            yield f"no price for {chip or 'an unknown chip'} {where}: its rows have no cost"


async def records(store: Store, span: Period) -> AsyncIterator[LedgerRecord]:
    """Yield the usage records of a period, each once, in the order of the ledger's files.

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
    """Return the ledger's files that may have records of a period, sorted by first record.

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
        text = (
            f"{key} in the store is damaged, or not a file of the ledger: restore it from a backup"
        )
        raise UsageError(f"{text} ({type(error).__name__})") from None


def _order(record_id: str) -> Id:
    milliseconds, _, number = record_id.partition("-")
    return int(milliseconds), int(number)


def _time(record_id: str) -> datetime:
    return datetime.fromtimestamp(_order(record_id)[0] / 1000, UTC)


def _json(rows: Sequence[Row], report: Report) -> str:
    return json.dumps(rows, indent=1) + "\n"


def _csv(rows: Sequence[Row], report: Report) -> str:
    text = io.StringIO()
    names = (*report.by, *Sums().row(), *report.costs)
    writer = csv.DictWriter(text, names, lineterminator="\n")
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


DIGITS = {COST: 2}
"""Decimals of columns of the printed table; 1 elsewhere."""


def _table(rows: Sequence[Row], report: Report) -> str:
    names = (*report.by, *SHOWN, *report.costs)
    head = tuple(name.upper().replace("_", " ") for name in names)
    text = io.StringIO()
    print_table(head, *(tuple(_cell(name, row[name]) for name in names) for row in rows), to=text)
    return text.getvalue()


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{DIGITS.get(name, 1)}f}" if isinstance(value, float) else str(value) or "-"


WRITERS: Mapping[str, Callable[[Sequence[Row], Report], str]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
}


def _write_parquet(rows: Sequence[Row], report: Report, output: Path | None) -> None:
    """Write the rows of a usage report to a Parquet file. Raises: UsageError."""
    if output is None:
        raise UsageError("--format parquet: name the file by --output")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        text = f"--format parquet: it needs the extra parquet: {how_to_install('parquet')}"
        raise UsageError(f"{text}, or take csv") from None
    kinds = {int: pyarrow.int64(), float: pyarrow.float64()}
    columns = [(name, pyarrow.string()) for name in report.by]
    columns += [(name, kinds[type(value)]) for name, value in Sums().row().items()]
    columns += [(name, pyarrow.float64()) for name in report.costs]
    table = pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(columns))
    parquet.write_table(table, output)
