"""Cost of native histograms: `python -m lab.bench.histograms`. Measures processor time of an
observation and of a page, alternating between kinds, and the bytes of the pages."""

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
from service.metrics.front_end import DURATION_BUCKETS_S, Telemetry
from service.metrics.protobuf import HISTOGRAM
from service.routing import JOB_OPERATIONS
from tests.service.metrics.test_protobuf import read
from workers.pool import metrics

FIRST_NATIVE = 5
"""Number of the first protobuf field of native histograms."""
TURNS = 25
OBSERVATIONS = 5_000
MODELS, CLASSES = ("a", "b", "c"), ("default", "gold")
FORMATS = {
    "text": CONTENT_TYPE_PLAIN_0_0_4,
    "OpenMetrics": "application/openmetrics-text; version=1.0.0",
    "protobuf": PROTOBUF,
}
IMPORT = """
import time, service.metrics.front_end
began = time.process_time()
import service.metrics.protobuf
print(time.process_time() - began)
"""


def by_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median processor time of each call in seconds, measured in turns."""
    samples_s: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            started = time.process_time()
            call()
            samples_s[name].append(time.process_time() - started)
    return {name: statistics.median(samples) for name, samples in samples_s.items()}


def observations() -> None:
    """Print the time of an observation of request durations, with and without an exemplar."""
    values = [random.lognormvariate(-2, 1.5) for _ in range(OBSERVATIONS)]
    for exemplar in (None, {"trace_id": "a" * 32, "span_id": "b" * 16}):
        series = {
            name: kind("h", "H.", ("m",), buckets=DURATION_BUCKETS_S, registry=None).labels("x")
            for name, kind in (("classic", prometheus_client.Histogram), ("both", Histogram))
        }
        calls = {
            name: partial(observe, series_, values, exemplar) for name, series_ in series.items()
        }
        for name, time_s in by_turns(calls).items():
            kind = f"{name}, with an exemplar" if exemplar else name
            print(f"observation, {kind}: {time_s / OBSERVATIONS * 1e6:.2f} us")


def observe(
    series: prometheus_client.Histogram, values: list[float], exemplar: dict[str, str] | None
) -> None:
    """Observe all values."""
    for value in values:
        series.observe(value, exemplar)


def at_work(registry: CollectorRegistry) -> None:
    """Observe values in each existing series."""
    for family in {*registry._collector_to_names}:
        if isinstance(family, Histogram):
            for _, series in family._series():
                for _ in range(1000):
                    series.observe(random.lognormvariate(0, 1))


def front_end() -> CollectorRegistry:
    """Metrics of a front end with a few models and the routes that submit jobs."""
    telemetry = Telemetry()
    telemetry.expect(MODELS, CLASSES)
    for route in JOB_OPERATIONS:
        telemetry.durations.labels(str(route), "POST")
        telemetry.requests.labels(str(route), "POST", "200")
    return telemetry.registry


def pool() -> CollectorRegistry:
    """Metrics of a pool with one model."""
    metrics.expect(MODELS[0], CLASSES, objective_s=300)
    return REGISTRY


def pages(name: str, registry: CollectorRegistry) -> None:
    """Print processor time and bytes of a page in each format."""
    at_work(registry)
    calls = {kind: partial(page, registry, accept) for kind, accept in FORMATS.items()}
    for kind, time_s in by_turns(calls).items():
        size = len(page(registry, FORMATS[kind])[0])
        print(f"page of a {name}, {kind}: {time_s * 1e3:.2f} ms, {size:,} bytes")
    classic = sum(family.ByteSize() for family in classic_alone(page(registry, PROTOBUF)[0]))
    print(f"page of a {name}, protobuf without native buckets: {classic:,} bytes")


def classic_alone(body: bytes) -> list[Any]:
    """Metric families of a page with native buckets removed."""
    families = read(body)
    for family in families:
        for metric in family.metric if family.type == HISTOGRAM else ():
            for field, _ in metric.histogram.ListFields():
                if field.number >= FIRST_NATIVE:
                    metric.histogram.ClearField(field.name)
    return families


def first_page() -> None:
    """Print the additional cost of the first protobuf page."""
    times_s = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(5)]
    print(f"import of protobuf: {statistics.median(times_s) * 1e3:.0f} ms")


if __name__ == "__main__":
    random.seed(0)
    observations()
    pages("front end", front_end())
    pages("pool", pool())
    first_page()
