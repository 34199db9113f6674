"""Collector of traces and metrics: real OTLP over HTTP, stored in memory."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

ROOT = ""
POLL_S = 0.02
"""Interval in which it checks for shutdown."""


@dataclass(frozen=True)
class Span:
    """A received span. Times are in seconds since the epoch."""

    service: str
    trace: str
    id: str
    parent: str
    name: str
    start: float
    end: float
    error: str | None
    attributes: dict[str, Any]
    events: tuple[tuple[str, float], ...]
    links: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """Last received point of a metric's series."""

    unit: str
    value: float
    """Sum, for a histogram."""
    count: int | None = None
    buckets: tuple[tuple[float, int], ...] = ()
    """Bounds and counts of a histogram, the last without a bound."""
    exemplars: frozenset[str] = frozenset()
    """Trace ids of its exemplars."""


Series = tuple[str, frozenset[tuple[str, str]]]
"""Metric name and labels."""


@dataclass
class Pushed:
    """Resource and series that one process pushed."""

    resource: dict[str, Any]
    points: dict[Series, Point]
    times: int = 0


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Span] = []
        self.pushed: dict[str, Pushed] = {}
        """Pushed metrics by `service.instance.id`."""
        self.raw = b""
        """All received bytes, to check that they lack private texts."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def traces(self) -> dict[str, list[Span]]:
        by_trace = defaultdict(list)
        with self.lock:
            for span in self.spans:
                by_trace[span.trace].append(span)
        return dict(by_trace)

    def of_job(self, job_id: str) -> list[Span]:
        """All spans of the job's trace, in order of their start."""
        for spans in self.traces().values():
            if any(span.attributes.get("atelier.job.id") == job_id for span in spans):
                return sorted(spans, key=lambda span: span.start)
        return []


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.server.lock:
            self.server.raw += body
            if self.path == "/v1/metrics":
                keep(self.server.pushed, body)
                answer = ExportMetricsServiceResponse().SerializeToString()
            else:
                assert self.path == "/v1/traces"
                self.server.spans += read(body)
                answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def read(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    service=service,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano / 1e9,
                    end=span.end_time_unix_nano / 1e9,
                    error=span.status.message if span.status.code == 2 else None,
                    attributes=plain(span.attributes),
                    events=tuple((item.name, item.time_unix_nano / 1e9) for item in span.events),
                    links=tuple(item.trace_id.hex() for item in span.links),
                )


def keep(pushed: dict[str, Pushed], body: bytes) -> None:
    for resource_metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        resource = plain(resource_metrics.resource.attributes)
        process = pushed.setdefault(resource["service.instance.id"], Pushed(resource, {}))
        process.times += 1
        for metric in (
            metric for scope in resource_metrics.scope_metrics for metric in scope.metrics
        ):
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                labels = frozenset(plain(point.attributes).items())
                process.points[metric.name, labels] = point_of(metric.unit, point)


def point_of(unit: str, point: Any) -> Point:
    if not hasattr(point, "bucket_counts"):
        return Point(unit, point.as_double)
    traces = frozenset(exemplar.trace_id.hex() for exemplar in point.exemplars)
    bounds = [*point.explicit_bounds, float("inf")]
    buckets = tuple(zip(bounds, point.bucket_counts, strict=True))
    return Point(unit, point.sum, point.count, buckets, traces)


def plain(attributes: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
