"""Cost of native histograms: `python -m tests.bench.histograms`.

Processor time of an observation and of a page, each kind by turns, and the bytes of the pages.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import prometheus_client
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, CollectorRegistry

from service.jobs.model.histogram import Histogram
from service.metrics.exposition import PROTOBUF, page
from service.metrics.http import DURATION_BUCKETS_S, Telemetry
from service.metrics.protobuf import HISTOGRAM
from service.routing import ASK_FOR_WORK
from tests.service.metrics.test_protobuf import read
from workers.pool import metrics

FIRST_NATIVE = 5
"""Number of the first field of native histograms."""
TURNS = 25
OBSERVATIONS = 5_000
MODELS, CLASSES = ("a", "b", "c"), ("default", "gold")
FORMATS = {
    "text": CONTENT_TYPE_PLAIN_0_0_4,
    "OpenMetrics": "application/openmetrics-text; version=1.0.0",
    "protobuf": PROTOBUF,
}
IMPORT = """
import time, service.metrics.http
began = time.process_time()
import service.metrics.protobuf
print(time.process_time() - began)
"""


def by_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median processor time of each, in seconds."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            began = time.process_time()
            call()
            took[name].append(time.process_time() - began)
    return {name: statistics.median(found) for name, found in took.items()}


def observations() -> None:
    """One observation, among the buckets of requests' durations, without an exemplar and with."""
    values = [random.lognormvariate(-2, 1.5) for _ in range(OBSERVATIONS)]
    for exemplar in (None, {"trace_id": "a" * 32, "span_id": "b" * 16}):
        series = {
            name: kind("h", "H.", ("m",), buckets=DURATION_BUCKETS_S, registry=None).labels("x")
            for name, kind in (("classic", prometheus_client.Histogram), ("both", Histogram))
        }
        calls = {name: partial(observe, one, values, exemplar) for name, one in series.items()}
        for name, took in by_turns(calls).items():
            kind = f"{name}, with an exemplar" if exemplar else name
            print(f"observation, {kind}: {took / OBSERVATIONS * 1e6:.2f} us")


def observe(
    series: prometheus_client.Histogram, values: list[float], exemplar: dict[str, str] | None
) -> None:
    """Observe all of them."""
    for value in values:
        series.observe(value, exemplar)


def at_work(registry: CollectorRegistry) -> None:
    """Observe something in each series that is there."""
    for family in {*registry._collector_to_names}:
        if isinstance(family, Histogram):
            for _, series in family._series():
                for _ in range(1000):
                    series.observe(random.lognormvariate(0, 1))


def front_end() -> CollectorRegistry:
    """Its page, of a few models and the routes that ask for work."""
    telemetry = Telemetry()
    telemetry.expect(MODELS, CLASSES)
    for route in ASK_FOR_WORK:
        telemetry.durations.labels(str(route), "POST")
        telemetry.requests.labels(str(route), "POST", "200")
    return telemetry.registry


def pool() -> CollectorRegistry:
    """Its page, of one model."""
    metrics.expect(MODELS[0], CLASSES, objective_s=300)
    return REGISTRY


def pages(name: str, registry: CollectorRegistry) -> None:
    """Processor time and bytes of a page in each format."""
    at_work(registry)
    calls = {kind: partial(page, registry, accept) for kind, accept in FORMATS.items()}
    for kind, took in by_turns(calls).items():
        size = len(page(registry, FORMATS[kind])[0])
        print(f"page of a {name}, {kind}: {took * 1e3:.2f} ms, {size:,} bytes")
    classic = sum(one.ByteSize() for one in classic_alone(page(registry, PROTOBUF)[0]))
    print(f"page of a {name}, protobuf without native buckets: {classic:,} bytes")


def classic_alone(body: bytes) -> list[Any]:
    """The families of a page without native buckets."""
    families = read(body)
    for family in families:
        for metric in family.metric if family.type == HISTOGRAM else ():
            for field, _ in metric.histogram.ListFields():
                if field.number >= FIRST_NATIVE:
                    metric.histogram.ClearField(field.name)
    return families


def first_page() -> None:
    """Print the further cost of the first page in protobuf."""
    took = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(5)]
    print(f"import of protobuf: {statistics.median(took) * 1e3:.0f} ms")


if __name__ == "__main__":
    random.seed(0)
    observations()
    pages("front end", front_end())
    pages("pool", pool())
    first_page()
