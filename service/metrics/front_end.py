"""Prometheus metrics of one front end, with one registry per app."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.late_status import final_status
from service.jobs.model.histogram import Histogram
from service.jobs.model.metrics import JobMetrics, ReuseMetrics, SafetyMetrics
from service.metrics import exposition
from service.metrics.ledger import LedgerMetrics
from service.metrics.queue import QueueGauges, RedisMetrics
from service.metrics.versions import VersionMetrics
from service.schemas.verify import PENDING, Verdict
from service.tracing import spans
from service.tracing.library_warnings import library_warnings

log = logging.getLogger("atelier")

METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
DURATION_BUCKETS_S = (
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    900,
)
ADMISSION_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GENERATE, READ = "generate", "read"
"""Classes of API requests: those that create jobs, and all others."""
ANSWERED, FAILED = "answered", "failed"
UNKNOWN = ""
"""Model label of refused requests that name no registered model."""
COMMON_REFUSALS = (
    "invalid_request", "queue_full", "quota_exceeded", "deadline_too_soon", "store_unreachable",
    "safety_unavailable",
)  # fmt: skip
"""Refusals exported as 0 in advance, so that alerts can detect the first increase. Others appear
when they occur."""


class Telemetry:
    """All Prometheus metrics of one front end, and their exposition.

    Label values come from routes, registered models and our code, never from clients, so their
    number is small.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(library_warnings)
        self.job_metrics = JobMetrics(self.registry)
        self.requests = Counter(
            "atelier_http_requests_total",
            "Requests answered, by route, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.api = Counter(
            "atelier_api_requests_total",
            "Requests to the API, by whether they create jobs, and whether the response was a 5xx.",
            ("class", "outcome"),
            registry=self.registry,
        )
        for name, outcome in itertools.product((GENERATE, READ), (ANSWERED, FAILED)):
            self.api.labels(name, outcome)
        self.durations = Histogram(
            "atelier_http_request_duration_seconds",
            "Seconds from a request's arrival to the last byte of its response.",
            ("route", "method"),
            buckets=DURATION_BUCKETS_S,
            registry=self.registry,
        )
        self.accepted = Counter(
            "atelier_jobs_accepted_total",
            "Jobs accepted into the queue.",
            ("model", "tenant_class"),
            registry=self.registry,
        )
        self.refused = Counter(
            "atelier_jobs_refused_total",
            "Requests for a job that were refused, by model (empty: unknown) and reason.",
            ("model", "tenant_class", "reason"),
            registry=self.registry,
        )
        self.damaged = Counter(
            "atelier_outputs_damaged_total",
            "Reads of outputs whose stored bytes do not match their checksum.",
            registry=self.registry,
        )
        self.admissions = Histogram(
            "atelier_admission_seconds",
            "Seconds from a request's body to the queued job, accepted requests only.",
            ("model",),
            buckets=ADMISSION_BUCKETS_S,
            registry=self.registry,
        )
        self.connections = Gauge(
            "atelier_connections",
            "Open client connections.",
            registry=self.registry,
        )
        self.connections_closed = Counter(
            "atelier_connections_closed_total",
            "Connections closed because a client exceeded a limit, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.verifications = Counter(
            "atelier_verifications_total",
            "Verifications of outputs (`POST /v1/verify`) that ended, by verdict.",
            ("verdict",),
            registry=self.registry,
        )
        for verdict in {*get_args(Verdict)} - {PENDING}:
            self.verifications.labels(verdict)
        self.reuse = ReuseMetrics(self.registry)
        self.queue = QueueGauges(self.registry)
        self.redis = RedisMetrics(self.registry)
        self.ledger = LedgerMetrics(self.registry)
        self.versions = VersionMetrics(self.registry)
        self.safety = SafetyMetrics(self.registry, "before")

    def expect(
        self, models: Iterable[str], classes: Iterable[str], named: Iterable[str] = ()
    ) -> None:
        """Export the series of these models and classes, as 0 before the first event.

        Args:
            named: models that requests may name, including variants served by other models'
                workers.
        """
        models, classes = tuple(models), tuple(classes)
        self.job_metrics.expect(models, classes)
        for model in models:
            self.admissions.labels(model)
            self.reuse.expect(model)
        for model, name in itertools.product(models, classes):
            self.accepted.labels(model, name)
        for model, name in itertools.product({*models, *named, UNKNOWN}, classes):
            for reason in COMMON_REFUSALS:
                self.refused.labels(model, name, reason)

    def page(self, accept: str | None) -> tuple[bytes, str]:
        """Return the metrics in the format of an Accept header, and their media type."""
        return exposition.page(self.registry, accept)


class MeasureRequests:
    """ASGI middleware that counts and times every request under its route's template.

    Args:
        class_of: class of a route's requests; None: not part of the API.
    """

    def __init__(
        self, app: ASGIApp, telemetry: Telemetry, class_of: Callable[[Any], str | None]
    ) -> None:
        self.app = app
        self.telemetry = telemetry
        self.class_of = class_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record the request's duration and the response's status."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started, status = time.perf_counter(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            self._record(scope, final_status(scope, status), time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Record a request's duration and status under its route's template.

        The log has only the route, too: clients' paths are private.
        """
        matched = scope.get("route")
        route = getattr(matched, "path_format", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.telemetry.requests.labels(route, method, str(status)).inc()
        exemplar = spans.exemplar_of(spans.current_traceparent())
        self.telemetry.durations.labels(route, method).observe(seconds, exemplar)
        if name := self.class_of(matched):
            self.telemetry.api.labels(name, FAILED if status >= 500 else ANSWERED).inc()
        log.debug("%s %s %d in %.3f s", method, route, status, seconds)
