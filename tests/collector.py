"""A collector of traces and metrics: real OTLP over HTTP, kept in memory."""

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
"""How soon it hears that it is to end."""


@dataclass(frozen=True)
class Told:
    """One span as it was received. Times in seconds since the epoch."""

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
    """One series of a metric, as it was received last."""

    unit: str
    value: float
    """Of a histogram its sum."""
    count: int | None = None
    buckets: tuple[tuple[float, int], ...] = ()
    """Bounds and counts of a histogram, the last without a bound."""
    exemplars: frozenset[str] = frozenset()
    """Traces that it names."""


Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels."""


@dataclass
class Pushed:
    """What one process has pushed."""

    resource: dict[str, Any]
    points: dict[Series, Point]
    times: int = 0


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Told] = []
        self.pushed: dict[str, Pushed] = {}
        """By `service.instance.id`."""
        self.raw = b""
        """All that was sent, for what must not be in it."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def traces(self) -> dict[str, list[Told]]:
        found = defaultdict(list)
        with self.lock:
            for span in self.spans:
                found[span.trace].append(span)
        return dict(found)

    def of_job(self, job_id: str) -> list[Told]:
        """All spans of the trace that has this job."""
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


def read(body: bytes) -> Iterator[Told]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Told(
                    service=service,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano / 1e9,
                    end=span.end_time_unix_nano / 1e9,
                    error=span.status.message if span.status.code == 2 else None,
                    attributes=plain(span.attributes),
                    events=tuple((one.name, one.time_unix_nano / 1e9) for one in span.events),
                    links=tuple(one.trace_id.hex() for one in span.links),
                )


def keep(pushed: dict[str, Pushed], body: bytes) -> None:
    for one in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        resource = plain(one.resource.attributes)
        found = pushed.setdefault(resource["service.instance.id"], Pushed(resource, {}))
        found.times += 1
        for metric in (metric for scope in one.scope_metrics for metric in scope.metrics):
            data = getattr(metric, metric.WhichOneof("data"))
            for point in data.data_points:
                labels = frozenset(plain(point.attributes).items())
                found.points[metric.name, labels] = point_of(metric.unit, point)


def point_of(unit: str, point: Any) -> Point:
    if not hasattr(point, "bucket_counts"):
        return Point(unit, point.as_double)
    traces = frozenset(one.trace_id.hex() for one in point.exemplars)
    bounds = [*point.explicit_bounds, float("inf")]
    buckets = tuple(zip(bounds, point.bucket_counts, strict=True))
    return Point(unit, point.sum, point.count, buckets, traces)


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


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
