"""KEDA's query for the number of pools, evaluated by Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from service.settings.models import ModelSettings
from tests.deploy.k8s.objects import of_kind, pods_of
from tests.deploy.k8s.rendering import GKE, K8S, load_all, overlay
from tests.deploy.k8s.settings import settings_of
from tests.deploy.watching.tools import promtool
from tools.reference import metrics as metrics_page

UP = {"atelier_queue_up": 1}
MODEL_OF = re.compile(r'model="([^"]+)"')
CASES: dict[str, tuple[dict[str, float], float | None]] = {
    "no front end has reported it yet": (UP, 1),
    "it is reported and has no pool": (UP | {"backlog": 0, "pools": 0, "ready": 0}, 0),
    "its first pool warms up": (UP | {"backlog": 0, "pools": 1, "ready": 0}, 1),
    "its pools are idle": (UP | {"backlog": 0, "pools": 2, "ready": 1}, 0),
    "work waits without a pool": (UP | {"backlog": 1, "pools": 0, "ready": 0}, 1),
    "work waits for pools": (UP | {"backlog": 70, "pools": 2, "ready": 1}, 70),
    "Redis is unreachable": ({"atelier_queue_up": 0}, None),
    "nothing was scraped": ({}, None),
}
"""Metrics of two front ends about the model, and the expected result; None for no answer."""
METRICS = {
    "backlog": "atelier_queue_backlog_device_seconds",
    "pools": "atelier_model_pools",
    "ready": "atelier_model_ready",
}


PLACE = 'namespace="atelier", cluster="here"'
ELSEWHERE = ('namespace="atelier-2", cluster="here"', 'namespace="atelier", cluster="there"')
"""Matchers of other installs in the same Prometheus."""


def query(model: str, place: str) -> str:
    """The KEDA component's query for a model of an install."""
    (scaled,) = load_all((K8S / "components/keda/scaled-object.yaml").read_text())
    text = str(scaled["spec"]["triggers"][0]["metadata"]["query"])
    text = text.replace('model="MODEL"', f'model="{model}", {place}')
    return text.replace("atelier_queue_up", f"atelier_queue_up{{{place}}}")


def series(stdin: dict[str, float]) -> list[dict[str, str]]:
    """Series of two front ends; another model, and this model in other installs, always have
    backlog."""
    named_values = {METRICS.get(name, name): value for name, value in stdin.items()}
    of_model = [
        f'model="MODEL", {PLACE}' if name in METRICS.values() else PLACE for name in named_values
    ]
    rows = [*zip(named_values, of_model, named_values.values(), strict=True)]
    if stdin:
        busy = [f'model="other", {PLACE}', *(f'model="MODEL", {place_}' for place_ in ELSEWHERE)]
        rows += [(name, labels, 5.0) for name in METRICS.values() for labels in busy]
        rows += [("atelier_queue_up", place_, 1.0) for place_ in ELSEWHERE]
    return [
        {"series": f'{name}{{instance="{front}", {labels}}}', "values": f"{value:g}"}
        for name, labels, value in rows
        for front in ("a", "b")
    ]


def test_backlog_query_returns_seconds_of_work(tmp_path: Path) -> None:
    tests = [
        {
            "name": name,
            "input_series": series(metrics),
            "promql_expr_test": [
                {
                    "expr": query("MODEL", PLACE),
                    "eval_time": "0s",
                    "exp_samples": []
                    if expected is None
                    else [{"labels": "{}", "value": expected}],
                }
            ],
        }
        for name, (metrics, expected) in CASES.items()
    ]
    file = tmp_path / "query.yaml"
    file.write_text(json.dumps({"evaluation_interval": "15s", "tests": tests}))
    promtool("test", "rules", file)


@pytest.mark.parametrize("name", GKE)
def test_alerts_have_the_aim_that_pools_are_scaled_by(name: str) -> None:
    """Scaling uses the alerts' objective; cold_start_s covers the start of a machine."""
    objects = overlay(name)
    pools = [pods for pods in pods_of(objects) if pods.component == "pool"]
    models = {
        name: item for pods in pools for name, item in settings_of(objects, pods).models.items()
    }
    scaled = of_kind(objects, "ScaledObject")
    assert scaled
    for item in scaled:
        (trigger,) = item["spec"]["triggers"]
        (model,) = set(MODEL_OF.findall(trigger["metadata"]["query"]))
        assert models[model].objective_s == float(trigger["metadata"]["threshold"])
        assert models[model].cold_start_s > ModelSettings(source="another").cold_start_s


def test_scaler_metrics_are_exported_by_front_ends() -> None:
    assert {*METRICS.values(), *UP} <= set().union(*metrics_page.pages().values())
