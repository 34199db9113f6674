"""Rules and their cases as a cluster's operator rewrites rules: scoped to where they were applied.

Both operators do the same with other labels: each selector of a rule is narrowed to the labels by
equality, and each rule, recording or alerting, has them among its own `labels`, so that its results
have them though its expression aggregates them away. Aggregations and joins stay as they are.

- Google's Managed Service for Prometheus, of a `Rules` object: project_id, location, cluster and
  namespace. Source: GoogleCloudPlatform/prometheus-engine,
  pkg/operator/apis/monitoring/v1/rules_config.go (`scope`).
- The Prometheus Operator, with `enforcedNamespaceLabel`: that one label. Source:
  prometheus-operator/prometheus-operator, pkg/namespacelabeler/labeler.go.

So every series of a case has the labels, and so has every result that is expected. Beside each
series lie those of strangers, which differ in one label each: of one all is as it was at first, and
another has other series' values. A selector without a matcher would mix them in.
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
    """Labels that an operator scopes rules to."""

    name: str
    labels: Mapping[str, str]

    @property
    def matchers(self) -> str:
        """Return the labels as matchers, or as labels of a series."""
        return ",".join(f'{name}="{value}"' for name, value in self.labels.items())

    def strangers(self, named: str) -> Iterator[Scope]:
        """Yield scopes that differ in one label."""
        for name in self.labels:
            yield Scope(self.name, {**self.labels, name: named})


GOOGLE = Scope(
    "Google",
    {"project_id": "ours", "location": "europe-west4", "cluster": "one", "namespace": "atelier"},
)
OPERATOR = Scope("operator", {"namespace": "atelier"})
SCOPES = {scope.name: scope for scope in (GOOGLE, OPERATOR)}


def rules_of(file: Path, scope: Scope) -> dict[str, Any]:
    """Return a file of rules as the operator evaluates it."""
    read: dict[str, Any] = yaml.safe_load(file.read_text())
    for rule in (rule for group in read["groups"] for rule in group["rules"]):
        own = rule.get("labels", {})
        assert not own.keys() & scope.labels.keys(), "Google's operator refuses such a rule"
        rule["labels"] = {**own, **scope.labels}
        rule["expr"] = scoped(rule["expr"], scope.matchers)
    return read


def write_cases(file: Path, scope: Scope, folder: Path) -> Path:
    """Write a file of cases, and the rules that it names, as they are below a scope."""
    for rules in RULES:
        (folder / rules.name).write_text(json.dumps(rules_of(rules, scope)))
    cases = yaml.load(file.read_text(), yaml.BaseLoader)  # `0x5` is five values, and no number
    cases["rule_files"] = [Path(name).name for name in cases["rule_files"]]
    cases["tests"] = [_test(test, scope) for test in cases["tests"]]
    written = folder / f"cases of {file.name}"
    written.write_text(json.dumps(cases))
    return written


def _test(test: Test, scope: Scope) -> Test:
    own = [{**one, "series": scoped(one["series"], scope.matchers)} for one in test["input_series"]]
    return {
        **test,
        "input_series": [*own, *_strange(test["input_series"], scope)],
        "alert_rule_test": [_alert(case, scope) for case in test.get("alert_rule_test", ())],
        "promql_expr_test": [_query(case, scope) for case in test.get("promql_expr_test", ())],
    }


def _strange(series: list[dict[str, Any]], scope: Scope) -> Iterator[dict[str, Any]]:
    values = [one["values"] for one in series]
    others = {"busy": [*values[1:], values[0]], "calm": [f"{_first(one)}x300" for one in values]}
    for named, told in others.items():
        for stranger in scope.strangers(named):
            for one, other in zip(series, told, strict=True):
                yield {"series": scoped(one["series"], stranger.matchers), "values": other}


def _first(values: str) -> str:
    """Return the first of a series' values."""
    found = re.match(r"[\d.]+", values)
    assert found, values
    return found[0]


def _alert(case: Test, scope: Scope) -> Test:
    fired = [
        {**one, "exp_labels": {**one["exp_labels"], **scope.labels}}
        for one in case.get("exp_alerts", ())
    ]
    return {**case, "exp_alerts": fired}


def _query(case: Test, scope: Scope) -> Test:
    samples = [
        {"labels": _labelled(one["labels"], scope), "value": float(one["value"])}
        for one in case.get("exp_samples", ())
    ]
    return {**case, "expr": scoped(case["expr"], scope.matchers), "exp_samples": samples}


def _labelled(labels: str, scope: Scope) -> str:
    """Return a sample's name and labels with those of the scope."""
    name, _, own = labels.partition("{")
    every = ",".join(filter(None, (own.rstrip("}"), scope.matchers)))
    return f"{name}{{{every}}}"
