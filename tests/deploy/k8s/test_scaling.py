"""How many pools KEDA is to have, by the query of its ScaledObjects, asked of Prometheus itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.deploy.k8s.rendering import K8S, load_all
from tests.deploy.watching.tools import promtool
from tools.reference import metrics as metrics_page

UP = {"atelier_queue_up": 1}
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


def query() -> str:
    """Of the component, with MODEL in place of a model's name."""
    (scaled,) = load_all((K8S / "components/keda/scaled-object.yaml").read_text())
    return str(scaled["spec"]["triggers"][0]["metadata"]["query"])


def series(told: dict[str, float]) -> list[dict[str, str]]:
    """By each of two front ends; of another model there is always much to do."""
    ours = {METRICS.get(name, name): value for name, value in told.items()}
    rows = [
        (name, 'model="MODEL"' if name in METRICS.values() else "", ours[name]) for name in ours
    ]
    rows += [(name, 'model="other"', 5.0) for name in METRICS.values() if told]
    return [
        {"series": f'{name}{{instance="{front}", {label}}}', "values": f"{value:g}"}
        for name, label, value in rows
        for front in ("a", "b")
    ]


def test_it_says_how_many_seconds_of_work_there_are(tmp_path: Path) -> None:
    tests = [
        {
            "name": name,
            "input_series": series(told),
            "promql_expr_test": [
                {
                    "expr": query(),
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


def test_its_metrics_are_those_of_the_front_ends() -> None:
    assert {*METRICS.values(), *UP} <= set().union(*metrics_page.pages().values())
