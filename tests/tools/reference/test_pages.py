"""The committed reference pages match the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference.pages import PAGES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_not_drifted(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == PAGES[path](), "run `make reference`"


@pytest.mark.parametrize("path", PAGES)
def test_every_entry_has_a_meaning(path: str) -> None:
    """The last column of every table has text, except in pages of parameters."""
    rows = [line for line in (ROOT / path).read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    if path.endswith(("configuration.md", "cli.md", "metrics.md")):
        assert [row for row in rows if row.rstrip().endswith("|  |")] == []
