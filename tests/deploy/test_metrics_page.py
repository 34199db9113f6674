"""docs/reference/metrics.md is what the code tells."""

from __future__ import annotations

from pathlib import Path

from deploy.metrics_page import LABELS, as_markdown, pages

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_codes() -> None:
    """`make metrics` writes it."""
    assert (ROOT / "docs/reference/metrics.md").read_text() == as_markdown()


def test_every_label_says_where_its_values_come_from() -> None:
    families = [family for page in pages().values() for family in page.values()]
    assert {label for family in families for label in family.labels} == LABELS.keys()


def test_names_are_prometheus_own() -> None:
    for page in pages().values():
        for family in page.values():
            assert family.name.endswith("_total") == (family.kind == "counter"), family
            assert family.meaning.endswith("."), family
