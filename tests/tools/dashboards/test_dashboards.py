"""The dashboards' files: made by the code, and whole in themselves. Their queries are run by
tests/e2e/test_watching.py."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import yaml

from tests.deploy.watching.files import (
    CONFIG,
    DASHBOARDS,
    DEPLOY,
    asked_by_dashboards,
    asked_by_rules,
    dashboards,
    panels,
    rules,
    strings,
)
from tools.dashboards.__main__ import DASHBOARDS as WRITTEN
from tools.dashboards.__main__ import FOLDER, text
from tools.reference.metrics import pages

ALL = dashboards()
GRAFANAS = {"__rate_interval", "__range", "__from", "__to", "__value"}
PROMETHEUS = {"ALERTS", "up", "process_start_time_seconds"}
NAME = re.compile(r"\b(?:atelier_\w+|\w+:\w+:\w+|ALERTS|up(?=\{)|process_\w+)")


def test_the_files_are_what_the_code_writes() -> None:
    assert {file.stem for file in DASHBOARDS} == set(WRITTEN)
    for name, dashboard in WRITTEN.items():
        said = "differs: run `make dashboards`"
        assert (FOLDER / f"{name}.json").read_text() == text(dashboard), f"{name}.json {said}"


@pytest.mark.parametrize("uid", ALL)
def test_a_dashboard_is_whole(uid: str) -> None:
    dashboard = ALL[uid]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    names = [panel["title"] for panel in panels(dashboard)]
    assert len(set(names)) == len(names)
    for one, other in combinations(dashboard["panels"], 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    for panel in panels(dashboard):
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["type"] == "text" or (panel["description"] and panel["targets"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


@pytest.mark.parametrize("uid", ALL)
def test_what_queries_and_links_refer_to_can_be_chosen(uid: str) -> None:
    dashboard = ALL[uid]
    choices = {variable["name"] for variable in dashboard["templating"]["list"]}
    said = strings(dashboard["panels"]) + strings(dashboard["links"])
    named = {name for one in said for name in re.findall(r"\$\{?(\w+)", one)}
    assert named <= choices | GRAFANAS
    assert choices <= named | {"datasource"}, "a choice that changes nothing"


def test_every_metric_that_is_asked_for_exists() -> None:
    """Those as well of which a run on CPUs has nothing to tell."""
    asked = [*asked_by_dashboards("1m", "1h"), *asked_by_rules()]
    named = {name for one in asked for name in NAME.findall(one.expr)}
    assert named <= told() | PROMETHEUS | set(rules("record"))


def test_every_metric_that_exists_is_asked_for() -> None:
    """Or nobody would look at it."""
    asked = [*asked_by_dashboards("1m", "1h"), *asked_by_rules()]
    words = " ".join(one.expr for one in asked)
    ours = {name for page in pages().values() for name in page}
    assert not {name for name in ours if not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", words)}


def told() -> set[str]:
    """Names of the samples that pools and front ends may tell."""
    ours = [family for page in pages().values() for family in page.values()]
    parts = ("_bucket", "_sum", "_count")
    return {
        family.name + part
        for family in ours
        for part in (parts if family.kind == "histogram" else ("",))
    }


def test_grafana_is_given_what_compose_mounts() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())
    chosen = next(
        v for v in ALL["atelier-service"]["templating"]["list"] if v["name"] == "datasource"
    )
    assert source["datasources"][0]["uid"] == chosen["current"]["value"]
    interval = yaml.safe_load(CONFIG.read_text())["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == interval
