"""The files of deploy/prometheus and deploy/grafana, and the queries in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import yaml

from tools.rules import RULES

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
COMPOSE = DEPLOY.parent / "docker-compose.yml"
RULE_TESTS = tuple(sorted((DEPLOY.parent / "tests" / "deploy" / "rules").glob("*.yaml")))
DASHBOARDS = tuple(sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")))
RUNBOOK = DEPLOY.parent / "docs" / "operations" / "runbook.md"
PANEL_LINK = re.compile(r"\[([^]]+)\]\(http://localhost:3000(/d/[\w-]+\?viewPanel=\d+)\)")
"""In the runbook: a panel's title and its address in Grafana."""

CHOICES = {name: ".*" for name in ("cluster", "namespace", "model", "tenant_class", "pool")}
"""Of a dashboard's variables: everything."""
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True)
class Asked:
    """One query, and who asks it."""

    by: str
    expr: str


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """All of that kind (`alert` or `record`), by name."""
    found = [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if kind in rule
    ]
    series = {(rule[kind], *sorted(rule.get("labels", {}).items())) for rule in found}
    assert len(series) == len(found), "two rules share a name and labels"
    return {rule[kind]: rule for rule in found}


def dashboards() -> dict[str, dict[str, Any]]:
    """By uid."""
    return {one["uid"]: one for one in (json.loads(file.read_text()) for file in DASHBOARDS)}


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that show something; rows are titles."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def titles() -> dict[str, str]:
    """Of all panels, by their address in Grafana."""
    return {
        f"/d/{uid}?viewPanel={panel['id']}": panel["title"]
        for uid, dashboard in dashboards().items()
        for panel in panels(dashboard)
    }


def strings(value: Any) -> list[str]:
    """All that are in it."""
    if isinstance(value, dict):
        return [one for item in value.values() for one in strings(item)]
    if isinstance(value, list):
        return [one for item in value for one in strings(item)]
    return [value] if isinstance(value, str) else []


TRACES_LINK = re.compile(r"\$\{traces:raw\}/search\?([^)\s]+)")


def searches() -> list[dict[str, str]]:
    """What dashboards ask Jaeger for, by its parameters."""
    found = {one for text in strings(dashboards()) for one in TRACES_LINK.findall(text)}
    return [dict(parse_qsl(query, strict_parsing=True)) for query in sorted(found)]


def filled_in(expr: str, interval: str, span: str, **chosen: str) -> str:
    """As Grafana sends it, with everything chosen that is not said to be.

    Args:
        interval: that rates are taken over, such as `1m`.
        span: what the dashboard shows, such as `3h`.
        chosen: choices by their variables.
    """
    given = CHOICES | {"__rate_interval": interval, "__range": span} | chosen
    return re.sub(r"\$(\w+)", lambda found: given[found[1]], expr)


def asked_by_dashboards(interval: str, span: str) -> Iterator[Asked]:
    """The queries of all panels, and of the choices above them."""
    for dashboard in dashboards().values():
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                by = f"{dashboard['title']} / {panel['title']} / {target['refId']}"
                yield Asked(by, filled_in(target["expr"], interval, span))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                series, label = LABEL_VALUES.fullmatch(variable["definition"]).groups()
                expr = filled_in(series, interval, span)
                by = f"{dashboard['title']} / choice of {variable['name']}"
                yield Asked(by, f"count by ({label}) ({expr})")


def asked_by_rules() -> Iterator[Asked]:
    """The recorded expressions, and the alerts' with all that they compare."""
    for name, rule in rules("record").items():
        yield Asked(name, rule["expr"])
    for name, rule in rules("alert").items():
        yield Asked(name, unconditional(rule["expr"]))


COMPARISON = re.compile(r"(?<=\s)(==|!=|<=|>=|<|>)(?=\s)")


def unconditional(expr: str) -> str:
    """The same expression that says 0 or 1 of all that it is about, instead of leaving out what is
    as it should be: comparisons yield a value."""
    return COMPARISON.sub(r"\1 bool", expr)
