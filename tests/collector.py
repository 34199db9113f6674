"""A collector of traces: real OTLP over HTTP, kept in memory."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Told] = []
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
        assert self.path == "/v1/traces"
        with self.server.lock:
            self.server.raw += body
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
