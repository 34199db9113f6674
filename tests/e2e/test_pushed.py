"""A real system pushes its metrics to a real OTLP collector, including the last values at exit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from service.jobs.model.gen_ai import DURATION, DURATION_SECONDS
from tests.collector import Collector, Pushed, collecting
from tests.e2e.conftest import Start
from tests.e2e.monitored_system import POOLS_PAGE
from tests.e2e.system import until

POOLS = {"tiny": {"model": "tiny", "slots": 1, "metrics_port": 0}}
BY_SCRAPES = ("atelier_http_", "atelier_connections", "process_", "python_")
"""Metrics that change with a scrape or with time."""
REFUSED = "atelier_jobs_refused_total"
SUMS = ("_total", "_sum", "_count")

Sums = dict[tuple[str, frozenset[str]], float]
"""Values by metric name and label values."""


def on_page(address: str) -> Sums:
    page = httpx.get(f"{address}/metrics", trust_env=False).text
    return {
        (
            sample.name.replace(DURATION_SECONDS, DURATION),
            frozenset(sample.labels.values()) - {""},
        ): (sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.endswith(SUMS) and not sample.name.startswith(BY_SCRAPES)
    }


def in_push(process: Pushed) -> Sums:
    result: Sums = {}
    for (name, labels), point in process.points.items():
        values = frozenset(text for _, text in labels)
        if point.count is not None:
            result |= {(f"{name}_sum", values): point.value, (f"{name}_count", values): point.count}
        elif name.endswith(SUMS):
            result[name, values] = point.value
    return {key: value for key, value in result.items() if not key[0].startswith(BY_SCRAPES)}


def of(collector: Collector, service: str) -> Pushed | None:
    matches = [
        pushed for pushed in collector.pushed.values() if pushed.resource["service.name"] == service
    ]
    return matches[0] if matches else None


def test_pushed_metrics_match_the_pages(start: Start, state: Path) -> None:
    with collecting() as collector:
        system = start(
            ATELIER_POOLS=json.dumps(POOLS),
            ATELIER_METRICS__OTLP_ENDPOINT=collector.url,
            ATELIER_METRICS__PUSH_EVERY_S="0.5",
        )
        url = system.url
        pages = {
            "atelier-frontend": url,
            "atelier-pool": f"http://127.0.0.1:{system.wait_for(POOLS_PAGE)[1]}",
        }
        with httpx.Client(base_url=url, timeout=90, trust_env=False) as http:
            body = {"prompt": "a star", "num_inference_steps": 2}
            job = http.post("/v1/generate", json=body, headers={"Prefer": "wait=60"}).json()
            assert job["state"] == "succeeded"

            def is_same(service: str) -> bool:
                process = of(collector, service)
                return process is not None and in_push(process) == on_page(pages[service])

            for service in pages:
                until(lambda service=service: is_same(service), f"{service}'s metrics")
            ended = "atelier_jobs_ended_total", frozenset({"tiny", "default", "succeeded"})
            pool = of(collector, "atelier-pool")
            assert pool and in_push(pool)[ended] == 1
            assert pool.resource["atelier.model"] == "tiny"
            http.post("/v1/generate", json=body | {"width": "x"})
        os.kill(system.process.pid, signal.SIGINT)
        assert system.wait() == 0
        front = of(collector, "atelier-frontend")
        assert front
        counts = in_push(front).items()
        assert sum(value for (name, _), value in counts if name == REFUSED) == 1, "the last push"
        gauges = {name for name, _ in front.points}
        assert {"atelier_queue_up", "atelier_queue_jobs"} <= gauges
