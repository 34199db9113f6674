"""Results of `make test-all` as a page, docs/design/nightly.md, with a row per shard."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "nightly.md"
HEAD = """\
# Results of the full test suite

`make test-all` writes this page: one row for each part (`SHARD=k/n`), as it was last run.

| part | commit | date | passed | failed | CPU-s |
|---|---|---|---|---|---|
"""
ROW = re.compile(r"^\| (\d+/\d+) \|.*$", re.MULTILINE)


def write(shard: str, passed: int, failed: Mapping[str, str], cpu_s: Mapping[str, float]) -> None:
    """Replace the row of a shard, and its failures below the table."""
    rows = dict(_rows())
    names = ", ".join(f"`{test}`" for test in failed) or "none"
    rows[shard] = (
        f"| {shard} | {_commit()} | {datetime.now(UTC):%Y-%m-%d} | {passed} | {names} | "
        f"{sum(cpu_s.values()):.0f} |"
    )
    PAGE.write_text(HEAD + "".join(f"{row}\n" for _, row in sorted(rows.items())))


def _rows() -> list[tuple[str, str]]:
    text = PAGE.read_text() if PAGE.exists() else ""
    return [(match[1], match[0]) for match in ROW.finditer(text)]


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=PAGE.parent, capture_output=True, text=True).stdout.strip()
