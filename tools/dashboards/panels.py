"""Elements of Grafana dashboards as dataclasses. Units and colours are Grafana's names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools.promql import scoped

IN_CLUSTER = 'cluster=~"$cluster"'
SCOPE = f'{IN_CLUSTER},namespace=~"$namespace"'
"""Matchers added to all series, because several installations may share a Prometheus."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Kind = Literal["timeseries", "stat", "bargauge", "heatmap", "text"]
Thresholds = Sequence[tuple[float, str]]
"""Colours from these values on; green below the first."""


@dataclass(frozen=True)
class Query:
    """PromQL expression, and the legend of its series."""

    expr: str
    legend: str = ""

    def json(self, index: int, kind: Kind) -> dict[str, Any]:
        """Return the query as Grafana's JSON."""
        now = kind == "bargauge"
        return {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": scoped(self.expr, SCOPE),
            "legendFormat": self.legend or "__auto",
            "format": "heatmap" if kind == "heatmap" else "time_series",
            "range": not now,
            "instant": now,
            **({"exemplar": True} if "_bucket" in self.expr and not now else {}),
        }


@dataclass(frozen=True)
class Link:
    """Link from a Grafana panel's series."""

    title: str
    url: str

    def json(self) -> dict[str, Any]:
        """Return the link as Grafana's JSON."""
        return {"title": self.title, "url": self.url, "targetBlank": True}


@dataclass(frozen=True)
class Panel:
    """Panel of a dashboard. Its id must never change, because alerts link to it."""

    id: int
    title: str
    description: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    """Width, of 24 columns."""
    height: int = 8
    stacked: bool = False
    first: str = "green"
    """Colour below all thresholds."""
    thresholds: Thresholds = ()
    top: float | None = None
    """Maximum of the axis; None: automatic."""
    links: tuple[Link, ...] = ()

    def json(self, x: int, y: int) -> dict[str, Any]:
        """Return the panel as Grafana's JSON, at a position of the grid."""
        base = {
            "id": self.id,
            "type": self.kind,
            "title": self.title,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
        }
        if self.kind == "text":
            return base | {"options": {"mode": "markdown", "content": self.description}}
        return base | {
            "description": self.description,
            "datasource": SOURCE,
            "targets": [query.json(i, self.kind) for i, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._field(), "overrides": []},
            "options": OPTIONS[self.kind],
        }

    def _field(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = [{"color": self.first, "value": None}]
        steps += [{"color": color, "value": value} for value, color in self.thresholds]
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "min": 0,
            "links": [link.json() for link in self.links],
            "thresholds": {"mode": "absolute", "steps": steps},
        }
        if self.top is not None:
            defaults["max"] = self.top
        if self.kind == "timeseries":
            defaults["custom"] = self._drawing()
        else:
            defaults["color"] = {"mode": "thresholds"}
        return defaults

    def _drawing(self) -> dict[str, Any]:
        return {
            "drawStyle": "line",
            "lineWidth": 2,
            "fillOpacity": 30 if self.stacked else 6,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if self.thresholds else "off"},
        }


OPTIONS: dict[Kind, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "value",
    },
    "bargauge": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        "yAxis": {"unit": "s"},
        "tooltip": {"show": True, "yHistogram": False},
    },
}


@dataclass(frozen=True)
class Variable:
    """Variable of a dashboard: a label's values, or a text."""

    name: str
    label: str
    query: str = ""
    """PromQL query of the label's values; empty: a text box."""
    value: str = ""
    """Initial value of a text box."""
    within: str = SCOPE
    """Matchers of the preceding variables."""

    def json(self) -> dict[str, Any]:
        """Return the variable as Grafana's JSON."""
        base = {"name": self.name, "label": self.label}
        if not self.query:
            current = {"text": self.value, "value": self.value}
            return base | {
                "type": "textbox", "query": self.value, "current": current, "options": [current],
            }  # fmt: skip
        query = scoped(self.query, self.within)
        everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
        return base | {
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": self.name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": everything,
        }


@dataclass(frozen=True)
class Row:
    """Row of Grafana panels under a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """Grafana dashboard made of rows of panels."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    links: tuple[Link, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the dashboard as Grafana's JSON."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["atelier"],
            "schemaVersion": 39,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "links": [NEIGHBOURS, *({"type": "link"} | link.json() for link in self.links)],
            "templating": {
                "list": [DATASOURCE, *(variable.json() for variable in WHERE + self.variables)]
            },
            "annotations": {"list": []},
            "panels": list(_placed(self.rows)),
        }


NEIGHBOURS = {
    "type": "dashboards",
    "title": "Atelier",
    "tags": ["atelier"],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
}
DATASOURCE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "current": {"text": "Prometheus", "value": "prometheus"},
    "hide": 0,
}
WHERE = (
    Variable("cluster", "Cluster", "label_values(atelier_queue_up, cluster)", within=""),
    Variable(
        "namespace", "Namespace", "label_values(atelier_queue_up, namespace)", within=IN_CLUSTER
    ),
)
"""Variables of every dashboard. Without these labels, as with Docker Compose, "All" matches all
series."""
COLUMNS = 24
ROW_IDS = 1000
"""First id of rows, above the ids of panels."""


def _placed(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Yield panels from left to right under the title of their row."""
    y = 0
    for number, row in enumerate(rows):
        yield {
            "id": ROW_IDS + number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        x, y = 0, y + 1
        height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            yield panel.json(x, y)
            x, height = x + panel.width, panel.height
        y += height
