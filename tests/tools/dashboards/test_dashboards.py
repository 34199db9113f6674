"""Dashboard files are generated from the code and consistent. tests/e2e/test_watching.py runs their
queries."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from service.jobs.model.gen_ai import DURATION_SECONDS
from tests.deploy.watching.files import (
    CONFIG,
    DASHBOARDS,
    DEPLOY,
    dashboard_queries,
    dashboards,
    filled_in,
    panels,
    rule_queries,
    rules,
    strings,
)
from tests.deploy.watching.tools import promtool
from tools.dashboards.__main__ import DASHBOARDS as WRITTEN
from tools.dashboards.__main__ import FOLDER, text
from tools.dashboards.panels import IN_CLUSTER, SCOPE, SOURCE
from tools.promql import SELECTOR, scoped
from tools.reference.metrics import pages

ALL = dashboards()
GRAFANAS = {"__rate_interval", "__range", "__from", "__to", "__value"}
PROMETHEUS = {"ALERTS", "up", "process_start_time_seconds"}
KUBERNETES = {"kube_horizontalpodautoscaler_spec_max_replicas"}
"""Metrics of kube-state-metrics, which some clusters have."""


def test_generated_dashboards_are_current() -> None:
    assert {file.stem for file in DASHBOARDS} == set(WRITTEN)
    for name, dashboard in WRITTEN.items():
        hint = "differs: run `make dashboards`"
        assert (FOLDER / f"{name}.json").read_text() == text(dashboard), f"{name}.json {hint}"


@pytest.mark.parametrize("uid", ALL)
def test_panels_fit_without_overlap(uid: str) -> None:
    dashboard = ALL[uid]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    names = [panel["title"] for panel in panels(dashboard)]
    assert len(set(names)) == len(names)
    for first, second in combinations(dashboard["panels"], 2):
        assert not overlap(first["gridPos"], second["gridPos"]), (first["title"], second["title"])
    for panel in panels(dashboard):
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["type"] == "text" or (panel["description"] and panel["targets"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


@pytest.mark.parametrize("uid", ALL)
def test_variables_in_queries_and_links_exist(uid: str) -> None:
    dashboard = ALL[uid]
    choices = {variable["name"] for variable in dashboard["templating"]["list"]}
    texts = strings(dashboard["panels"]) + strings(dashboard["links"])
    variables_ = {name for text_ in texts for name in re.findall(r"\$\{?(\w+)", text_)}
    assert variables_ <= choices | GRAFANAS
    assert choices <= variables_ | {"datasource"}, "a choice that changes nothing"


def test_every_series_is_of_the_chosen_clusters_and_namespaces() -> None:
    for uid, dashboard in ALL.items():
        variables = {entry["name"]: entry for entry in dashboard["templating"]["list"]}
        assert list(variables)[:3] == ["datasource", "cluster", "namespace"]
        expressions = [
            entry["expr"] for panel in panels(dashboard) for entry in panel.get("targets", ())
        ]
        expressions += [
            variables[name]["definition"]
            for name in [*variables][3:]
            if "allValue" in variables[name]
        ]
        for expr in expressions:
            selectors = [*SELECTOR.finditer(expr)]
            assert selectors, (uid, expr)
            for entry in selectors:
                assert (entry["matchers"] or "").endswith(SCOPE), (uid, expr)
        assert variables["namespace"]["definition"].count(IN_CLUSTER) == 1


HELD = {
    "": 1,
    'cluster="one",namespace="atelier"': 20,
    'cluster="one",namespace="trial"': 300,
    'cluster="two",namespace="atelier"': 4000,
}
"""Queued jobs by the labels of an installation's series."""
CHOSEN: dict[str, tuple[dict[str, str], int]] = {
    "everything": ({}, 4000),
    "one namespace": ({"cluster": "one", "namespace": "atelier"}, 20),
    "one cluster": ({"cluster": "one"}, 300),
    "two namespaces": ({"cluster": "one", "namespace": "atelier|trial"}, 300),
}


@pytest.mark.parametrize("labels", ["", "all"])
def test_installations_are_distinguished(labels: str, tmp_path: Path) -> None:
    """Without labels, as with compose, every series matches."""
    queued = HELD if labels else {"": HELD[""]}
    cases = CHOSEN if labels else {"everything": ({}, HELD[""])}
    (panel,) = (candidate for candidate in panels(ALL["atelier-service"]) if candidate["id"] == 30)
    expr = panel["targets"][0]["expr"]
    series = [
        {
            "series": scoped('atelier_queue_jobs{model="flux",state="queued"}', own_labels),
            "values": str(value),
        }
        for own_labels, value in queued.items()
    ]
    queries = [
        {
            "expr": filled_in(expr, "1m", "1h", **chosen),
            "eval_time": "0s",
            "exp_samples": [{"labels": '{model="flux",state="queued"}', "value": expected}],
        }
        for chosen, expected in cases.values()
    ]
    file = tmp_path / "choices.yaml"
    tests = [{"input_series": series, "promql_expr_test": queries}]
    file.write_text(json.dumps({"evaluation_interval": "15s", "tests": tests}))
    promtool("test", "rules", file)


BUDGETS_LEFT: dict[str, dict[str, float]] = {
    "Error budget left": {'class="generate"': -9, 'class="read"': 1},
    "Error budget left: failed jobs": {'model="flux"': 0.5},
    "Error budget left: late jobs": {'model="flux"': 0.25},
}
"""Share of the budget after `EVENTS`, by panel and label."""
EVENTS = {
    'atelier_api_requests_total{class="generate",outcome="answered"}': 990,
    'atelier_api_requests_total{class="generate",outcome="failed"}': 10,
    'atelier_api_requests_total{class="read",outcome="answered"}': 10_000,
    'atelier_api_requests_total{class="read",outcome="failed"}': 0,
    'atelier_job_failures_total{model="flux",reason="internal"}': 5,
    'atelier_job_failures_total{model="flux",reason="invalid_request"}': 60,
    'atelier_jobs_ended_total{model="flux",outcome="canceled"}': 100,
    'atelier_jobs_ended_total{model="flux",outcome="failed"}': 65,
    'atelier_jobs_ended_total{model="flux",outcome="succeeded"}': 935,
    'atelier_jobs_in_time_total{model="flux",outcome="met"}': 385,
    'atelier_jobs_in_time_total{model="flux",outcome="missed"}': 15,
}
"""Events a minute, by counter."""


def test_polls_do_not_refill_the_error_budget(tmp_path: Path) -> None:
    exprs = {panel["title"]: panel["targets"][0]["expr"] for panel in panels(ALL["atelier-cost"])}
    queries = [
        {
            "expr": f"round({filled_in(exprs[title], '1m', '1h')}, 0.001)",
            "eval_time": "2h",
            "exp_samples": [{"labels": f"{{{label}}}", "value": n} for label, n in left.items()],
        }
        for title, left in BUDGETS_LEFT.items()
    ]
    series = [{"series": name, "values": f"0+{count}x120"} for name, count in EVENTS.items()]
    file = tmp_path / "budgets.yaml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": queries}]
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def test_every_queried_metric_exists() -> None:
    """Includes metrics that have no data on CPUs."""
    queries = [*dashboard_queries("1m", "1h"), *rule_queries()]
    metrics = {match["name"] for query in queries for match in SELECTOR.finditer(query.expr)}
    assert metrics <= told() | PROMETHEUS | KUBERNETES | set(rules("record"))


FOR_OTHER_DASHBOARDS = {DURATION_SECONDS}
"""Metrics under a convention's name that our dashboards query under another name."""


def test_curves_of_histograms_show_exemplars() -> None:
    """Histogram curves over time show exemplars, which link to traces."""
    targets = [
        target
        for board in ALL.values()
        for panel in panels(board)
        for target in panel.get("targets", ())
        if target.get("datasource") == SOURCE
    ]
    shown = {target["expr"] for target in targets if target.get("exemplar")}
    assert shown and shown == {
        target["expr"] for target in targets if "_bucket" in target["expr"] and target["range"]
    }


def test_every_exported_metric_is_queried() -> None:
    """A metric without a query would never be seen."""
    queries = [*dashboard_queries("1m", "1h"), *rule_queries()]
    words = " ".join(query.expr for query in queries)
    names = {name for page in pages().values() for name in page} - FOR_OTHER_DASHBOARDS
    assert not {
        name for name in names if not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", words)
    }


def told() -> set[str]:
    """Sample names that pools and front ends may export."""
    families = [family for page in pages().values() for family in page.values()]
    parts = ("_bucket", "_sum", "_count")
    return {
        family.name + part
        for family in families
        for part in (parts if family.kind == "histogram" else ("",))
    }


def test_grafana_provisioning_matches_compose() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())
    chosen = next(
        v for v in ALL["atelier-service"]["templating"]["list"] if v["name"] == "datasource"
    )
    assert source["datasources"][0]["uid"] == chosen["current"]["value"]
    interval = yaml.safe_load(CONFIG.read_text())["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == interval
