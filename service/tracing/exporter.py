"""Export of spans by OTLP over HTTP. Imported only if tracing is enabled.

A separate thread sends them from a bounded queue. An unreachable collector delays neither requests
nor steps; spans beyond the queue's limit are dropped.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer
from opentelemetry.util.types import AttributeValue

from service.settings.telemetry import TracingSettings

SEND_EVERY_S = 1.0
"""Interval between batches. A killed process loses the last second's spans."""
TIMEOUT_S = 10.0
"""Timeout of one batch, including retries."""
SHUTDOWN_TIMEOUT_S = 1.0
"""Time for an exiting process to send remaining spans."""
LOG_EVERY_S = 60.0
MAX_QUEUED = 4096
MAX_CHARS = 256
"""Maximum length of one attribute."""


class Ids(RandomIdGenerator):
    """Id generator: random, except for spans that several processes may record."""

    identity: ContextVar[str | None] = ContextVar("identity", default=None)
    """Identity of this task's next span; None: a random id."""

    def generate_span_id(self) -> int:
        """Return the span id derived from the next span's identity, or a random id."""
        identity = self.identity.get()
        if identity is None:
            return int(super().generate_span_id())
        return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8]) or 1


class RateLimitFilter(logging.Filter):
    """Log filter that passes one error of the exporter per minute.

    The exporter logs every failed attempt, and a collector may be unreachable for hours.
    """

    def __init__(self) -> None:
        super().__init__()
        self._from = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether enough time has passed since the exporter's last logged error."""
        if record.created < self._from:
            return False
        self._from = record.created + LOG_EVERY_S
        return True


RATE_LIMIT_FILTER = RateLimitFilter()


class Exporter:
    """OpenTelemetry SDK of this process, whose spans are sent to the collector in the settings."""

    def __init__(
        self, settings: TracingSettings, service: str, attributes: Mapping[str, AttributeValue]
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource_of(service, attributes),
            shutdown_on_exit=False,
            id_generator=Ids(),
            span_limits=SpanLimits(max_span_attribute_length=MAX_CHARS),
        )
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(RATE_LIMIT_FILTER)
        exporter = OTLPSpanExporter(endpoint=settings.address, timeout=TIMEOUT_S)
        processor = BatchSpanProcessor(
            exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=SEND_EVERY_S * 1000
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("atelier")  # no-op if OTEL_SDK_DISABLED is set

    def tracer_of(self, identity: str | None) -> Tracer:
        """Return the tracer of a span with this identity, or with a random id."""
        Ids.identity.set(identity)
        return self._tracer

    def flush(self) -> None:
        """Send recorded spans to the collector, within a second."""
        _send_remaining(self._provider.force_flush)

    def close(self) -> None:
        """Send recorded spans, and stop the exporter."""
        _send_remaining(self._provider.shutdown)


def _send_remaining(send: Callable[[], object]) -> None:
    """Send remaining spans, without waiting long for an unreachable collector."""
    sending = threading.Thread(target=send, name="last spans", daemon=True)
    sending.start()
    sending.join(SHUTDOWN_TIMEOUT_S)


def resource_of(service: str, attributes: Mapping[str, AttributeValue]) -> Resource:
    """Build the resource of a process. `OTEL_RESOURCE_ATTRIBUTES` adds to it.

    Args:
        service: role of this process, as `service.name`.
    """
    return Resource.create(
        {
            "service.name": service,
            "service.namespace": "atelier",
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            "service.version": _version(),
            **attributes,
        }
    )


def _version() -> str:
    try:
        return version("atelier")
    except PackageNotFoundError:  # run from the source tree
        return "unpackaged"
