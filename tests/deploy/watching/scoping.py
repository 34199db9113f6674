"""Scopes rules and their test cases to labels, as the operators of a cluster rewrite rules.

Both operators narrow each selector of a rule to the labels by equality. Each rule, recording or
alerting, also gets them in its `labels`, because its expression may aggregate them away.
Aggregations and joins stay unchanged.

- Google's Managed Service for Prometheus, for a `Rules` object: project_id, location, cluster and
  namespace. Source: GoogleCloudPlatform/prometheus-engine,
  pkg/operator/apis/monitoring/v1/rules_config.go (`scope`).
- The Prometheus Operator, with `enforcedNamespaceLabel`: only that label. Source:
  prometheus-operator/prometheus-operator, pkg/namespacelabeler/labeler.go.

So every series of a case and every expected result has the labels. Each case also gets series of
other scopes, which differ in one label each: "calm" ones keep the first value, "busy" ones take
another series' values. A selector without a matcher would mix them in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.promql import scoped
from tools.rules import RULES

Test = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """Labels to which an operator scopes rules."""

    name: str
    labels: Mapping[str, str]

    @property
    def matchers(self) -> str:
        """Return the labels as matchers, or as labels of a series."""
        return ",".join(f'{name}="{value}"' for name, value in self.labels.items())

    def strangers(self, named: str) -> Iterator[Scope]:
        """Yield scopes that differ in one label, with `named` as its value."""
        for name in self.labels:
            yield Scope(self.name, {**self.labels, name: named})


GOOGLE = Scope(
    "Google",
    {"project_id": "ours", "location": "europe-west4", "cluster": "one", "namespace": "atelier"},
)
OPERATOR = Scope("operator", {"namespace": "atelier"})
SCOPES = {scope.name: scope for scope in (GOOGLE, OPERATOR)}


def rules_of(file: Path, scope: Scope) -> dict[str, Any]:
    """Return a rules file as the operator evaluates it."""
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        labels = rule.get("labels", {})
        assert not labels.keys() & scope.labels.keys(), "Google's operator refuses such a rule"
        rule["labels"] = {**labels, **scope.labels}
        rule["expr"] = scoped(rule["expr"], scope.matchers)
    return document


def write_cases(file: Path, scope: Scope, folder: Path) -> Path:
    """Write a file of cases, and the rules that it names, within a scope."""
    for rules in RULES:
        (folder / rules.name).write_text(json.dumps(rules_of(rules, scope)))
    cases = yaml.load(file.read_text(), yaml.BaseLoader)  # `0x5` means five values, not a number
    cases["rule_files"] = [Path(name).name for name in cases["rule_files"]]
    cases["tests"] = [_test(test, scope) for test in cases["tests"]]
    written = folder / f"cases of {file.name}"
    written.write_text(json.dumps(cases))
    return written


def _test(test: Test, scope: Scope) -> Test:
    scoped_series = [
        {**entry, "series": scoped(entry["series"], scope.matchers)}
        for entry in test["input_series"]
    ]
    return {
        **test,
        "input_series": [*scoped_series, *_strange(test["input_series"], scope)],
        "alert_rule_test": [_alert(case, scope) for case in test.get("alert_rule_test", ())],
        "promql_expr_test": [_query(case, scope) for case in test.get("promql_expr_test", ())],
    }


def _strange(series: list[dict[str, Any]], scope: Scope) -> Iterator[dict[str, Any]]:
    values = [entry["values"] for entry in series]
    variants = {
        "busy": [*values[1:], values[0]],
        "calm": [f"{_first(entry)}x300" for entry in values],
    }
    for named, other_values in variants.items():
        for stranger in scope.strangers(named):
            for entry, other in zip(series, other_values, strict=True):
                yield {"series": scoped(entry["series"], stranger.matchers), "values": other}


def _first(values: str) -> str:
    """Return the first value of a series."""
    match = re.match(r"[\d.]+", values)
    assert match, values
    return match[0]


def _alert(case: Test, scope: Scope) -> Test:
    fired = [
        {**alert, "exp_labels": {**alert["exp_labels"], **scope.labels}}
        for alert in case.get("exp_alerts", ())
    ]
    return {**case, "exp_alerts": fired}


def _query(case: Test, scope: Scope) -> Test:
    samples = [
        {"labels": _labelled(sample["labels"], scope), "value": float(sample["value"])}
        for sample in case.get("exp_samples", ())
    ]
    return {**case, "expr": scoped(case["expr"], scope.matchers), "exp_samples": samples}


def _labelled(labels: str, scope: Scope) -> str:
    """Return a sample's name and labels together with the scope's."""
    name, _, own_labels = labels.partition("{")
    every = ",".join(filter(None, (own_labels.rstrip("}"), scope.matchers)))
    return f"{name}{{{every}}}"
