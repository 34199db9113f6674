"""Spans by OpenTelemetry, sent by OTLP over HTTP. Imported only if tracing is enabled.

A separate thread sends them from a bounded queue. An unreachable collector delays neither requests
nor steps; spans beyond the queue's limit are dropped.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as ApiSpan

from service.settings.tracing import TracingSettings
from service.tracing.resource import resource_of
from service.tracing.span import ERROR_TYPE, NONE, NOTHING, Attributes, Kind, Span

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

KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "consumer": SpanKind.CONSUMER}


class Ids(RandomIdGenerator):
    """Id generator: random, except for spans that several processes may record."""

    def __init__(self) -> None:
        self._next: ContextVar[str | None] = ContextVar("identity", default=None)

    def name_next(self, identity: str | None) -> None:
        """Set the identity of the next span that this task starts."""
        self._next.set(identity)

    def generate_span_id(self) -> int:
        """Return the id derived from the identity set for the next span, or a random id."""
        identity = self._next.get()
        if identity is None:
            return int(super().generate_span_id())
        self._next.set(None)
        return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8]) or 1


class RateLimitFilter(logging.Filter):
    """Log filter that passes one error of the exporter per minute.

    The exporter logs every failed attempt, and a collector may be unreachable for hours.
    """

    def __init__(self) -> None:
        super().__init__()
        self._from = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Check whether enough time has passed since the last error."""
        if record.created < self._from:
            return False
        self._from = record.created + LOG_EVERY_S
        return True


RATE_LIMIT_FILTER = RateLimitFilter()


class OpenTelemetry:
    """`Recorder` of one process that exports spans with OpenTelemetry."""

    def __init__(self, settings: TracingSettings, service: str, attributes: Attributes) -> None:
        self._ids = Ids()
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource_of(service, attributes),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attribute_length=MAX_CHARS),
        )
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(RATE_LIMIT_FILTER)
        exporter = OTLPSpanExporter(endpoint=settings.address, timeout=TIMEOUT_S)
        processor = BatchSpanProcessor(
            exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=SEND_EVERY_S * 1000
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("atelier")

    def begin(
        self,
        name: str,
        attributes: Attributes,
        *,
        parent: str | None,
        kind: Kind,
        at: float | None,
        identity: str | None,
    ) -> Span:
        """Start a trace span."""
        parent_span = None if parent is None else NonRecordingSpan(context_of(parent))
        self._ids.name_next(identity)
        span = self._tracer.start_span(
            name,
            None if parent_span is None else set_span_in_context(parent_span),
            kind=KINDS[kind],
            attributes=dict(attributes),
            start_time=nanoseconds(at),
            record_exception=False,
            set_status_on_exception=False,
        )
        # A no-op span results if OTEL_SDK_DISABLED is set.
        return ExportedSpan(span) if span.get_span_context().is_valid else NOTHING

    def flush(self) -> None:
        """Send recorded spans, within a few seconds."""
        _send_remaining(self._provider.force_flush)

    def close(self) -> None:
        """Send recorded spans, and stop the exporter."""
        _send_remaining(self._provider.shutdown)


def _send_remaining(send: Callable[[], object]) -> None:
    """Send remaining spans, without waiting long for an unreachable collector."""
    sending = threading.Thread(target=send, name="last spans", daemon=True)
    sending.start()
    sending.join(SHUTDOWN_TIMEOUT_S)


class ExportedSpan(Span):
    """Trace span that is exported by OpenTelemetry."""

    def __init__(self, span: ApiSpan) -> None:
        self._span = span
        context = span.get_span_context()
        trace, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
        flags = f"{context.trace_flags & TraceFlags.SAMPLED:02x}"
        self.traceparent = f"00-{trace}-{span_id}-{flags}"
        self.names = {"trace_id": trace, "span_id": span_id, "trace_flags": flags}

    def set(self, attributes: Attributes) -> None:
        """Set attributes of the span."""
        self._span.set_attributes(dict(attributes))

    def rename(self, name: str) -> None:
        """Change the span's name."""
        self._span.update_name(name)

    def event(self, name: str, attributes: Attributes = NONE) -> None:
        """Add an event to the span."""
        self._span.add_event(name, dict(attributes))

    def link(self, traceparent: str | None) -> None:
        """Link to a span of another trace; None: no link."""
        if traceparent is not None:
            self._span.add_link(context_of(traceparent))

    def fail(self, kind: str) -> None:
        """Mark the span as failed."""
        self._span.set_attribute(ERROR_TYPE, kind)
        self._span.set_status(Status(StatusCode.ERROR, kind))

    def end(self, at: float | None = None) -> None:
        """End the span, now or at that time."""
        self._span.end(nanoseconds(at))


def context_of(traceparent: str) -> SpanContext:
    """Convert a traceparent to a span context.

    Args:
        traceparent: ours, or checked by `spans.parse`.
    """
    _, trace, parent, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(parent, 16), True, TraceFlags(int(flags, 16)))


def nanoseconds(seconds: float | None) -> int | None:
    """Convert seconds to whole nanoseconds, OpenTelemetry's unit of time."""
    return None if seconds is None else round(seconds * 1e9)
