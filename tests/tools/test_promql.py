"""PromQL selectors are all found, without false matches."""

from __future__ import annotations

import re

import pytest

from tests.deploy.watching.files import dashboard_queries, rule_queries
from tools.promql import SELECTOR, scoped

LABELS = re.compile(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)")
WORD = re.compile(r"\b[A-Za-z_]\w*\b(?!\s*\()")
OPERATORS = {"and", "or", "unless", "offset", "bool", "sum", "min", "max", "avg", "count"}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("atelier_a", 'atelier_a{c="x"}'),
        ("atelier_a{}[5m]", 'atelier_a{c="x"}[5m]'),
        ('rate(atelier_a_total{b="y"}[5m])', 'rate(atelier_a_total{b="y",c="x"}[5m])'),
        ('atelier_a{route="/v1/jobs/{job_id}"}', 'atelier_a{route="/v1/jobs/{job_id}",c="x"}'),
        ('up{job=~"(.*/)?atelier-pools"} == 0', 'up{job=~"(.*/)?atelier-pools",c="x"} == 0'),
        (
            "atelier:b > on (model) 6 * model:atelier_b:max[1h:5m]",
            'atelier:b{c="x"} > on (model) 6 * model:atelier_b:max{c="x"}[1h:5m]',
        ),
        ("sum by (model) (time()) or vector(0)", "sum by (model) (time()) or vector(0)"),
    ],
)
def test_every_selector_is_narrowed(expr: str, expected: str) -> None:
    assert scoped(expr, 'c="x"') == expected


def test_queries_contain_only_selectors_and_operators() -> None:
    """A bare name would not be narrowed to a scope."""
    for query in [*dashboard_queries("1m", "1h"), *rule_queries()]:
        rest = LABELS.sub(" ", SELECTOR.sub(" ", query.expr))
        assert "{" not in rest, (query.by, rest)
        assert set(WORD.findall(rest)) <= OPERATORS, (query.by, rest)
