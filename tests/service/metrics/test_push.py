"""Push of metrics to a real OTLP collector; an unreachable collector delays no exit."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from pydantic import ValidationError

from service.jobs.ledger_files import Totals
from service.jobs.model.gen_ai import Durations
from service.metrics.ledger import SUMS, LedgerMetrics
from service.metrics.push import SHUTDOWN_TIMEOUT_S, pushing
from service.settings.section import ConfigError
from service.settings.telemetry import MetricsSettings
from tests.collector import Collector, Point, collecting
from tests.e2e.system import until
from tests.service.test_spans import loaded_after

RARELY_S = 3600.0
TRACE, SPAN = "a" * 32, "b" * 16

disable_created_metrics()


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("made_total", "Made.", ("model",), registry=registry).labels("tiny").inc(3)
    Gauge("held_bytes", "Held.", registry=registry).set(5)
    seconds = Histogram("took_seconds", "Took.", ("stage",), buckets=(1, 2), registry=registry)
    seconds.labels("")
    for value in (0.5, 1.5, 1.5, 9):
        seconds.labels("a").observe(value, {"trace_id": TRACE, "span_id": SPAN})
    Histogram("never_seconds", "Never.", ("stage",), registry=registry)
    Durations(registry).observe("style", "base", "store", 0.5, None)
    return registry


def settings(collector: Collector, every_s: float = RARELY_S) -> MetricsSettings:
    return MetricsSettings(otlp_endpoint=collector.url, push_every_s=every_s)


def received(collector: Collector) -> dict[tuple[str, frozenset[tuple[str, str]]], Point]:
    (process,) = collector.pushed.values()
    return process.points


def series(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_all_kinds_arrive_with_their_last_values(registry: CollectorRegistry) -> None:
    with collecting() as collector:
        with pushing(settings(collector), registry, "atelier-test", {"atelier.model": "tiny"}):
            pass
        (process,) = collector.pushed.values()
    assert process.times == 1, "the last push"
    resource = process.resource
    assert (resource["service.name"], resource["service.namespace"]) == ("atelier-test", "atelier")
    assert resource["service.version"] and resource["atelier.model"] == "tiny"
    points = process.points
    assert points[series("made_total", model="tiny")] == Point("", 3)
    assert points[series("held_bytes")] == Point("By", 5)
    buckets = ((1.0, 1), (2.0, 2), (float("inf"), 1))
    took = Point("s", 12.5, 4, buckets, frozenset({TRACE}))
    assert points[series("took_seconds", stage="a")] == took
    assert points[series("took_seconds")].count == 0
    assert not [name for name, _ in points if name == "never_seconds"]
    by_convention = {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "atelier",
        "gen_ai.request.model": "style",
        "gen_ai.response.model": "base",
        "error.type": "store",
    }
    assert points[series("gen_ai.server.request.duration", **by_convention)].value == 0.5


def test_totals_in_redis_have_no_start_time(registry: CollectorRegistry) -> None:
    ledger = LedgerMetrics(registry)
    ledger.update(Totals({("images", "tiny", "default"): 7}, 0, 0.0), ["tiny"], ["default"])
    with collecting() as collector, pushing(settings(collector), registry, "atelier-test"):
        pass
    request = ExportMetricsServiceRequest.FromString(collector.raw)
    started = {
        metric.name: {point.start_time_unix_nano > 0 for point in metric.sum.data_points}
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.HasField("sum")
    }
    assert started.pop("made_total") == {True}
    assert started == {sum_.name: {False} for sum_ in SUMS.values()}


def test_push_repeats_with_fresh_values(registry: CollectorRegistry) -> None:
    """Gauges that need a refresh are refreshed before each push."""
    gauge = Gauge("asked", "Asked.", registry=registry)

    def refresh() -> Future[Any]:
        done: Future[Any] = Future()
        threading.Thread(target=lambda: (gauge.inc(), done.set_result(None))).start()
        return done

    with (
        collecting() as collector,
        pushing(settings(collector, 0.01), registry, "atelier-test", refresh=refresh),
    ):
        until(lambda: collector.pushed, "a push")
        until(lambda: received(collector)[series("asked")].value >= 3, "a third one")


def test_failed_push_is_repeated(registry: CollectorRegistry) -> None:
    failures = [ValueError("not now")]
    gauge = Gauge("asked", "Asked.", registry=registry)

    def value() -> float:
        if failures:
            raise failures.pop()
        return 7

    gauge.set_function(value)
    with (
        collecting() as collector,
        pushing(settings(collector, 0.01), registry, "atelier-test"),
    ):
        until(lambda: collector.pushed, "a push")
        assert received(collector)[series("asked")].value == 7


def test_hanging_collector_does_not_block_the_exit(registry: CollectorRegistry) -> None:
    """The collector accepts connections and never responds. The exit does not wait for the push's
    timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        hanging = MetricsSettings(otlp_endpoint=address, push_every_s=RARELY_S)
        with pushing(hanging, registry, "atelier-test"):
            pass
        (left,) = (thread for thread in threading.enumerate() if thread.name == "metrics")
        assert left.daemon and SHUTDOWN_TIMEOUT_S < 10


def test_hanging_refresh_does_not_prevent_the_last_push(registry: CollectorRegistry) -> None:
    requested = threading.Event()

    def refresh() -> Future[Any]:
        requested.set()
        return Future()

    with collecting() as collector:
        with pushing(settings(collector, 0.01), registry, "atelier-test", refresh=refresh):
            assert requested.wait(30)
        assert series("held_bytes") in received(collector)


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("https://prometheus/api/v1/otlp/v1/metrics", "https://prometheus/api/v1/otlp/v1/metrics"),
    ],
)
def test_an_endpoint_has_a_path(endpoint: str, address: str) -> None:
    assert MetricsSettings(otlp_endpoint=endpoint).address == address


@pytest.mark.parametrize(
    "given", [{"otlp_endpoint": "collector:4318"}, {"push_every_s": 0}, {"push_every_s": -1}]
)
def test_invalid_settings_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        MetricsSettings(**given)


PUSH = """
from prometheus_client import CollectorRegistry
from service.metrics.push import pushing
from service.settings.telemetry import MetricsSettings
with pushing(MetricsSettings(otlp_endpoint={endpoint!r}), CollectorRegistry(), "x"):
    pass
"""


def test_disabled_push_loads_no_sdk() -> None:
    modules = loaded_after(PUSH.format(endpoint=None))
    assert modules.startswith("[") and "opentelemetry.sdk" not in modules


def test_missing_package_is_named_at_start() -> None:
    message = loaded_after(PUSH.format(endpoint="http://127.0.0.1:9"), "opentelemetry.sdk")
    assert message.startswith(f"{ConfigError.__module__}.{ConfigError.__name__}")
    assert "metrics.otlp_endpoint" in message and "pip install -e '.[otel]'" in message
