"""Names, labels and descriptions of metrics follow Prometheus' conventions."""

from __future__ import annotations

from tools.reference.metrics import LABELS, pages


def test_every_label_says_where_its_values_come_from() -> None:
    families = [family for page in pages().values() for family in page.values()]
    assert {label for family in families for label in family.labels} == LABELS.keys()


def test_names_are_prometheus_own() -> None:
    for page in pages().values():
        for family in page.values():
            assert family.name.endswith("_total") == (family.kind == "counter"), family
            assert family.meaning.endswith("."), family
