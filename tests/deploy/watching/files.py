"""Rules, dashboards and settings in deploy/prometheus and deploy/grafana, and their queries."""

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
"""A panel's title and its address in Grafana, as the runbook links to it."""

CHOICES = {name: ".*" for name in ("cluster", "namespace", "model", "tenant_class", "pool")}
"""Default choices of a dashboard's variables: everything."""
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True)
class Query:
    """A query and the panel or rule that contains it."""

    by: str
    expr: str


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Rules of a kind (`alert` or `record`) by name."""
    matches = [
        rule
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if kind in rule
    ]
    series = {(rule[kind], *sorted(rule.get("labels", {}).items())) for rule in matches}
    assert len(series) == len(matches), "two rules share a name and labels"
    return {rule[kind]: rule for rule in matches}


def dashboards() -> dict[str, dict[str, Any]]:
    """Dashboards by uid."""
    return {
        dashboard["uid"]: dashboard
        for dashboard in (json.loads(file.read_text()) for file in DASHBOARDS)
    }


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Panels with content; rows are only titles."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def titles() -> dict[str, str]:
    """Titles of all panels by their address in Grafana."""
    return {
        f"/d/{uid}?viewPanel={panel['id']}": panel["title"]
        for uid, dashboard in dashboards().items()
        for panel in panels(dashboard)
    }


def strings(value: Any) -> list[str]:
    """Collect all strings in nested lists and mappings."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


TRACES_LINK = re.compile(r"\$\{traces:raw\}/search\?([^)\s]+)")


def searches() -> list[dict[str, str]]:
    """Parameters of the dashboards' links to Jaeger searches."""
    queries = {link for text in strings(dashboards()) for link in TRACES_LINK.findall(text)}
    return [dict(parse_qsl(query, strict_parsing=True)) for query in sorted(queries)]


def filled_in(expr: str, interval: str, span: str, **chosen: str) -> str:
    """Fill in a query's variables as Grafana does; variables without a choice match everything.

    Args:
        interval: window of rates, such as `1m`.
        span: time range of the dashboard, such as `3h`.
        chosen: choices by variable.
    """
    values = CHOICES | {"__rate_interval": interval, "__range": span} | chosen
    return re.sub(r"\$(\w+)", lambda match: values[match[1]], expr)


def dashboard_queries(interval: str, span: str) -> Iterator[Query]:
    """Yield queries of all panels and of the variables' choices."""
    for dashboard in dashboards().values():
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                source = f"{dashboard['title']} / {panel['title']} / {target['refId']}"
                yield Query(source, filled_in(target["expr"], interval, span))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                series, label = LABEL_VALUES.fullmatch(variable["definition"]).groups()
                expr = filled_in(series, interval, span)
                source = f"{dashboard['title']} / choice of {variable['name']}"
                yield Query(source, f"count by ({label}) ({expr})")


def rule_queries() -> Iterator[Query]:
    """Yield recorded expressions, and alerts' expressions with bool comparisons."""
    for name, rule in rules("record").items():
        yield Query(name, rule["expr"])
    for name, rule in rules("alert").items():
        yield Query(name, unconditional(rule["expr"]))


COMPARISON = re.compile(r"(?<=\s)(==|!=|<=|>=|<|>)(?=\s)")


def unconditional(expr: str) -> str:
    """Make comparisons return 0 or 1 instead of filtering series out."""
    return COMPARISON.sub(r"\1 bool", expr)
