"""`atelier usage` over ledger files as a front end writes them."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import atelier
from service.jobs.storage.object_store import Store, ledger_key
from tools import rules

NUMBER = iter(range(1, 1_000_000))


def at(text: str) -> int:
    """Milliseconds since the epoch of a UTC time."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def a_record(time: str, **fields: Any) -> dict[str, Any]:
    number = next(NUMBER)
    return {
        "id": f"{at(time)}-{number}",
        "job": f"job_{number}",
        "tenant": "acme",
        "model": "flux",
        "outcome": "succeeded",
        "ended_at": at(time) / 1000,
        "images": 2,
        "pixels": 2 * 1024 * 1024,
        "steps": 56,
        "device_seconds": 5.0,
        "tenant_seconds": 4.0,
        "house_seconds": 1.0,
        "lost_seconds": 1.0,
        "chip": "h100",
        "chips": 8,
        **fields,
    }


def write(folder: Path, *records: dict[str, Any], is_old: bool = False) -> None:
    """Write one ledger file; `is_old`: with the earlier name, which lacks the last record's id."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    first, last = records[0]["id"], records[-1]["id"]
    key = ledger_key(first, last)
    put(folder, key.replace(f"-{last}", "") if is_old else key, lines)


def put(folder: Path, key: str, lines: str) -> None:
    data = gzip.compress(lines.encode())
    asyncio.run(Store(str(folder / "outputs")).put(key, data, "application/gzip"))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    first = a_record("2026-10-31T23:59:59")
    write(tmp_path, first)
    write(
        tmp_path,
        a_record("2026-11-01T00:00:00", tenant="acme", key="k1"),
        a_record("2026-11-01T00:30:00", tenant="bolt", chip="v6e", chips=1),
    )
    canceled = {"outcome": "canceled", "images": 0, "pixels": 0, "steps": 3, "job": "job_late"}
    correction = {"is_correction": True, "device_seconds": 0.1, "tenant_seconds": 0.1, "steps": 0}
    write(
        tmp_path,
        a_record("2026-11-30T23:59:59", **canceled),
        a_record("2026-11-30T23:59:59", **canceled | correction, house_seconds=0, lost_seconds=0),
    )
    write(tmp_path, a_record("2026-12-01T00:00:00"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    code = atelier.main(["usage", "--state", str(folder), *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> list[dict[str, Any]]:
    code, text, _ = run(capsys, folder, *arguments, "--format", "json")
    assert code == 0
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


def test_a_months_sums_by_tenant(capsys: pytest.CaptureFixture[str], ledger: Path) -> None:
    acme, bolt = rows(capsys, ledger, "--by", "tenant", "--month", "2026-11")
    assert acme == {
        "tenant": "acme",
        "jobs": 2,
        "succeeded": 1,
        "images": 2,
        "videos": 0,
        "frames": 0,
        "pixels": 2 * 1024 * 1024,
        "steps": 59,
        "device_seconds": 10.1,
        "tenant_seconds": 8.1,
        "house_seconds": 2.0,
        "lost_seconds": 2.0,
        "compile_seconds": 0.0,
        "chip_seconds": 80.8,
    }
    assert (bolt["tenant"], bolt["jobs"], bolt["chip_seconds"]) == ("bolt", 1, 5.0)


@pytest.mark.parametrize(
    "arguments, jobs",
    [
        ((), 5),
        (("--month", "2026-10"), 1),
        (("--month", "2026-12"), 1),
        (("--month", "2025-11"), 0),
        (("--from", "2026-11-01"), 4),
        (("--to", "2026-11-30"), 4),
        (("--from", "2026-11-30", "--to", "2026-11-30"), 1),
    ],
)
def test_usage_report_counts_jobs_of_selected_records(
    capsys: pytest.CaptureFixture[str], ledger: Path, arguments: tuple[str, ...], jobs: int
) -> None:
    assert sum(row["jobs"] for row in rows(capsys, ledger, *arguments)) == jobs


def test_report_of_the_current_month(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(tzinfo=None, day=1)
    write(tmp_path, a_record(now.isoformat()))
    write(tmp_path, a_record("2020-01-01T00:00:00"))
    assert [row["jobs"] for row in rows(capsys, tmp_path, "--month")] == [1]


def test_by_several(capsys: pytest.CaptureFixture[str], ledger: Path) -> None:
    result = rows(capsys, ledger, "--by", "tenant", "chip", "month")
    assert [(row["tenant"], row["chip"], row["month"], row["jobs"]) for row in result] == [
        ("acme", "h100", "2026-10", 1),
        ("acme", "h100", "2026-11", 2),
        ("acme", "h100", "2026-12", 1),
        ("bolt", "v6e", "2026-11", 1),
    ]
    result = rows(capsys, ledger, "--by", "job", "outcome", "--month", "2026-11")
    (late,) = [row for row in result if row["job"] == "job_late"]
    assert (late["jobs"], late["outcome"], late["device_seconds"]) == (1, "canceled", 5.1)


def test_record_in_two_files_counts_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second, third = (a_record("2026-11-01T00:00:00") for _ in range(3))
    write(tmp_path, first, second)
    write(tmp_path, second, third)
    assert [row["jobs"] for row in rows(capsys, tmp_path)] == [3]


def test_overlapping_exports_count_each_record_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second, third, fourth, fifth = (a_record("2026-11-01T00:00:00") for _ in range(5))
    write(tmp_path, first, third, fifth)
    write(tmp_path, first, second, fourth)
    write(tmp_path, fourth, fifth, a_record("2026-11-01T01:00:00"))
    assert [row["jobs"] for row in rows(capsys, tmp_path)] == [6]


@pytest.mark.parametrize("is_old", [False, True], ids=["both ids", "the first alone"])
def test_a_file_of_a_long_period_counts_where_its_records_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, is_old: bool
) -> None:
    """A file may span days, because `usage.file_every_s` need not divide a day."""
    days = [a_record(f"2026-{month}T12:00:00") for month in ("10-29", "10-31", "11-01", "11-02")]
    write(tmp_path, a_record("2026-10-28T12:00:00"), is_old=is_old)
    write(tmp_path, *days, is_old=is_old)
    write(tmp_path, a_record("2026-11-02T13:00:00"), is_old=is_old)
    for arguments, jobs in (
        (("--month", "2026-11"), [3]),
        (("--month", "2026-10"), [3]),
        (("--from", "2026-11-02"), [2]),
        (("--from", "2026-11-01", "--to", "2026-11-01"), [1]),
        (("--from", "2026-11-03"), []),
    ):
        assert [row["jobs"] for row in rows(capsys, tmp_path, *arguments)] == jobs, arguments


@pytest.mark.parametrize(
    "key",
    [
        "ledger/README.md",
        "ledger/2026/11/01/00/notes.jsonl.gz",
        "ledger/2026/11/01/00/1-2.jsonl.gz.bak",
        "ledger/copy/1-2.jsonl.gz",
    ],
)
def test_other_files_in_the_ledger_are_ignored(
    capsys: pytest.CaptureFixture[str], ledger: Path, key: str
) -> None:
    put(ledger, key, "no record")
    assert sum(row["jobs"] for row in rows(capsys, ledger)) == 5
    assert sum(row["jobs"] for row in rows(capsys, ledger, "--month", "2026-11")) == 3


def test_every_format_has_the_same_sums(
    capsys: pytest.CaptureFixture[str], ledger: Path, tmp_path: Path
) -> None:
    expected = rows(capsys, ledger, "--by", "tenant", "day")
    file = tmp_path / "usage.csv"
    by = ("--by", "tenant", "day")
    assert run(capsys, ledger, *by, "--format", "csv", "--output", str(file))[:2] == (0, "")
    read = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [{name: str(value) for name, value in row.items()} for row in expected] == read
    lines = run(capsys, ledger, *by)[1].splitlines()
    assert lines[0].split()[:3] == ["TENANT", "DAY", "JOBS"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [row["tenant"], row["day"], str(row["jobs"])] for row in expected
    ]


def test_parquet(capsys: pytest.CaptureFixture[str], ledger: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "usage.parquet"
    by = ("--by", "tenant", "day")
    assert run(capsys, ledger, *by, "--format", "parquet", "--output", str(file))[0] == 0
    assert parquet.read_table(file).to_pylist() == rows(capsys, ledger, *by)


def test_parquet_names_missing_options_and_packages(
    capsys: pytest.CaptureFixture[str], ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, ledger, "--format", "parquet")
    assert code == atelier.EXIT_USAGE and "--output" in err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = run(capsys, ledger, "--format", "parquet", "--output", str(ledger / "u"))
    assert code == atelier.EXIT_USAGE and "[parquet]" in err and "csv" in err


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("--month", "2026-13"), "--month"),
        (("--month", "9999-12"), "before 9999"),
        (("--to", "9999-12-31"), "before 9999"),
        (("--from", "yesterday"), "--from"),
        (("--by", "prompt"), "--by"),
        (("--month", "2026-11", "--from", "2026-11-01"), "--month"),
        (("--from", "2026-11-02", "--to", "2026-11-01"), "--to"),
        (("--output", "/nowhere/usage"), "/nowhere"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    try:
        code = atelier.main(["usage", "--state", str(tmp_path), *arguments])
    except SystemExit as exit:
        code = int(str(exit.code))
    assert code == atelier.EXIT_USAGE and word in capsys.readouterr().err


def test_a_damaged_file_is_named(capsys: pytest.CaptureFixture[str], ledger: Path) -> None:
    file = next((ledger / "outputs" / "ledger").rglob("*.gz"))
    file.write_bytes(file.read_bytes()[:-9])
    code, text, err = run(capsys, ledger)
    assert (code, text) == (atelier.EXIT_USAGE, "") and file.name in err


def test_empty_ledger_prints_only_the_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text, _ = run(capsys, tmp_path)
    assert code == 0 and len(text.splitlines()) == 1


PRICES = Path(rules.__file__).parents[1] / "deploy" / "prometheus" / "rules" / "prices.yaml"


def test_costs_are_those_of_the_rules(
    capsys: pytest.CaptureFixture[str], ledger: Path, tmp_path: Path
) -> None:
    """The ledger has 40 chip-seconds of h100 a record, at 4 an hour, and 5 of v6e, at 2.7."""
    month = ("--by", "tenant", "--month", "2026-11", "--prices")
    acme, bolt = rows(capsys, ledger, *month, str(PRICES))
    assert acme["cost"] == pytest.approx(80.8 / 3600 * 4)
    assert bolt["cost"] == pytest.approx(5 / 3600 * 2.7)
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(rules.manifest("Rules"))
    assert rows(capsys, ledger, *month, str(manifest)) == [acme, bolt]
    head, line, _ = run(capsys, ledger, *month, str(PRICES))[1].splitlines()
    assert (head.split()[-1], line.split()[-1]) == ("COST", "0.09")


def test_chip_without_a_price_is_named_and_has_no_cost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path, a_record("2026-11-01T00:00:00"))
    write(tmp_path, a_record("2026-11-01T00:00:00", spot=True, chip="tpu9", tenant="bolt"))
    arguments = ("--by", "tenant", "spot", "pool", "--prices", str(PRICES))
    code, text, err = run(capsys, tmp_path, *arguments, "--format", "csv")
    acme, bolt = csv.DictReader(io.StringIO(text))
    assert (code, acme["spot"], bolt["spot"]) == (0, "false", "true")
    assert float(acme["cost"]) > 0 and bolt["cost"] == ""
    assert err.splitlines() == ["no price for tpu9 on spot machines: its rows have no cost"]


@pytest.mark.parametrize("text", ["", "a: [", "groups: []", "- 1", "groups: [{rules: [{}]}]"])
def test_invalid_prices_are_refused(
    capsys: pytest.CaptureFixture[str], ledger: Path, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    code, _, err = run(capsys, ledger, "--prices", str(file))
    assert code == atelier.EXIT_USAGE and "--prices" in err
