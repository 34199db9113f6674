"""Rules and alerts are valid, each alert fires exactly in its cases, and links to its runbook entry
and panel."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from service.jobs import scripts
from service.jobs.model.job import CLIENT_ERRORS
from tests.deploy.watching.files import (
    CONFIG,
    PANEL_LINK,
    RULE_TESTS,
    RUNBOOK,
    rules,
    titles,
)
from tests.deploy.watching.scoping import SCOPES, write_cases
from tests.deploy.watching.tools import promtool
from tools.rules import API, EVERY, RULES, manifest

ALERTS = rules("alert")
ENTRY = re.compile(r"^### (\w+)\n(\w+)\. (.+?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
LEDGER = Path(scripts.__path__[0], "ledger.lua")
SEVERITIES = {"critical", "warning", "info"}
BASE = '{{ or $externalLabels.runbook "docs/operations/runbook.md" }}'
GRAFANA = "{{ $externalLabels.grafana }}"


@pytest.fixture(scope="module")
def entries() -> dict[str, tuple[str, str]]:
    """Severity and text of the runbook's entries, by alert."""
    matches = ENTRY.findall(RUNBOOK.read_text())
    return {name: (severity, text) for name, severity, text in matches}


def test_prometheus_takes_them() -> None:
    promtool("check", "config", CONFIG)
    promtool("check", "rules", *RULES)


@pytest.mark.parametrize("kind", API)
def test_kubernetes_rules_equal_the_files(kind: str) -> None:
    resource = yaml.safe_load(manifest(kind))
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    assert (resource["kind"], resource["apiVersion"]) == (kind, API[kind])
    assert resource["spec"]["groups"] == [group | {"interval": EVERY} for group in groups]


def test_generated_cluster_rules_are_current() -> None:
    hint = "deploy/prometheus/kubernetes/rules.yaml differs: run `make rules`"
    file = CONFIG.parent / "kubernetes" / "rules.yaml"
    assert file.read_text() == manifest("Rules"), hint


@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_alerts_fire_as_expected(file: Path) -> None:
    promtool("test", "rules", file)


def test_rules_and_the_ledger_have_the_codes_list_of_clients_faults() -> None:
    patterns = [text for file in RULES for text in re.findall(r'reason!~"(.*?)"', file.read_text())]
    match = re.search(r"CLIENTS_FAULT = {(.*?)}", LEDGER.read_text())
    assert len(patterns) > 5 and match
    assert {frozenset(text.split("|")) for text in patterns} == {CLIENT_ERRORS}
    assert set(re.findall(r"(\w+) = true", match[1])) == CLIENT_ERRORS


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.stem)
def test_alerts_fire_with_operator_scopes(file: Path, scope: str, tmp_path: Path) -> None:
    """Scopes of Google's operator, and of the Prometheus Operator with an enforced label."""
    promtool("test", "rules", write_cases(file, SCOPES[scope], tmp_path))


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases: dict[str, set[bool]] = defaultdict(set)
    for file in RULE_TESTS:
        for group in yaml.safe_load(file.read_text())["tests"]:
            for case in group.get("alert_rule_test", ()):
                cases[case["alertname"]].add(bool(case.get("exp_alerts")))
    assert cases == {name: {True, False} for name in ALERTS}


def test_each_recorded_series_has_a_case() -> None:
    expressions = " ".join(
        case["expr"]
        for file in RULE_TESTS
        for group in yaml.safe_load(file.read_text())["tests"]
        for case in group.get("promql_expr_test", ())
    )
    assert set(re.findall(r"[a-z]\w*(?::\w+)+", expressions)) == set(rules("record"))


def test_the_runbook_has_an_entry_for_each(entries: dict[str, tuple[str, str]]) -> None:
    severities = {name: severity for name, (severity, _) in entries.items()}
    assert severities == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    assert set(severities.values()) == SEVERITIES


@pytest.mark.parametrize("name", ALERTS)
def test_alert_annotations_are_complete(name: str, entries: dict[str, tuple[str, str]]) -> None:
    texts = ALERTS[name]["annotations"]
    assert set(texts) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert texts["summary"].endswith(".")
    assert texts["description"].endswith(".")
    assert texts["runbook_url"] == f"{BASE}#{name.lower()}"
    address = texts["dashboard_url"].removeprefix(GRAFANA).partition("&")[0]
    link = PANEL_LINK.search(entries[name][1])
    assert link, "its entry says nothing to look at"
    assert link[2] == address, "the runbook begins with another panel"
    assert link[1] == titles()[address]
