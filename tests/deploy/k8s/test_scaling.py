"""How many pools KEDA is to have, by the query of its ScaledObjects, asked of Prometheus itself."""

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
    "nobody has told of it yet": (UP, 1),
    "it was told of, and no pool is there": (UP | {"backlog": 0, "pools": 0, "ready": 0}, 0),
    "its first pool warms up": (UP | {"backlog": 0, "pools": 1, "ready": 0}, 1),
    "its pools are idle": (UP | {"backlog": 0, "pools": 2, "ready": 1}, 0),
    "work waits, and no pool is there": (UP | {"backlog": 1, "pools": 0, "ready": 0}, 1),
    "work waits for pools": (UP | {"backlog": 70, "pools": 2, "ready": 1}, 70),
    "Redis is away": ({"atelier_queue_up": 0}, None),
    "nobody was scraped": ({}, None),
}
"""What two front ends tell of the model, and what is to come out; None: no answer."""
METRICS = {
    "backlog": "atelier_queue_backlog_device_seconds",
    "pools": "atelier_model_pools",
    "ready": "atelier_model_ready",
}


PLACE = 'namespace="atelier", cluster="here"'
ELSEWHERE = ('namespace="atelier-2", cluster="here"', 'namespace="atelier", cluster="there"')
"""Matchers of other installs, whose series the same Prometheus has."""


def query(model: str, place: str) -> str:
    """The component's question, for a model of an install."""
    (scaled,) = load_all((K8S / "components/keda/scaled-object.yaml").read_text())
    text = str(scaled["spec"]["triggers"][0]["metadata"]["query"])
    text = text.replace('model="MODEL"', f'model="{model}", {place}')
    return text.replace("atelier_queue_up", f"atelier_queue_up{{{place}}}")


def series(told: dict[str, float]) -> list[dict[str, str]]:
    """Series of two front ends; of another model, and of it elsewhere, there is always much to
    do."""
    ours = {METRICS.get(name, name): value for name, value in told.items()}
    of_model = [f'model="MODEL", {PLACE}' if name in METRICS.values() else PLACE for name in ours]
    rows = [*zip(ours, of_model, ours.values(), strict=True)]
    if told:
        busy = [f'model="other", {PLACE}', *(f'model="MODEL", {place}' for place in ELSEWHERE)]
        rows += [(name, labels, 5.0) for name in METRICS.values() for labels in busy]
        rows += [("atelier_queue_up", place, 1.0) for place in ELSEWHERE]
    return [
        {"series": f'{name}{{instance="{front}", {labels}}}', "values": f"{value:g}"}
        for name, labels, value in rows
        for front in ("a", "b")
    ]


def test_it_says_how_many_seconds_of_work_there_are(tmp_path: Path) -> None:
    tests = [
        {
            "name": name,
            "input_series": series(told),
            "promql_expr_test": [
                {
                    "expr": query("MODEL", PLACE),
                    "eval_time": "0s",
                    "exp_samples": [] if wanted is None else [{"labels": "{}", "value": wanted}],
                }
            ],
        }
        for name, (told, wanted) in CASES.items()
    ]
    file = tmp_path / "query.yaml"
    file.write_text(json.dumps({"evaluation_interval": "15s", "tests": tests}))
    promtool("test", "rules", file)


@pytest.mark.parametrize("name", GKE)
def test_alerts_have_the_aim_that_pools_are_scaled_by(name: str) -> None:
    """And give a start from zero the time of a machine's."""
    objects = overlay(name)
    pools = [pods for pods in pods_of(objects) if pods.component == "pool"]
    models = {
        name: one for pods in pools for name, one in settings_of(objects, pods).models.items()
    }
    scaled = of_kind(objects, "ScaledObject")
    assert scaled
    for one in scaled:
        (trigger,) = one["spec"]["triggers"]
        (model,) = set(MODEL_OF.findall(trigger["metadata"]["query"]))
        assert models[model].objective_s == float(trigger["metadata"]["threshold"])
        assert models[model].cold_start_s > ModelSettings(source="another").cold_start_s


def test_its_metrics_are_those_of_the_front_ends() -> None:
    assert {*METRICS.values(), *UP} <= set().union(*metrics_page.pages().values())
