"""Spans by OpenTelemetry, sent by OTLP over HTTP. Imported only where tracing is switched on.

A thread of its own sends them, out of a queue of bounded length: a collector that is away costs
requests and steps nothing, and spans beyond the queue are lost.
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
"""Interval between batches: a process that is killed loses the last second's spans."""
TIMEOUT_S = 10.0
"""Timeout of one batch, its repeats included."""
LAST_WORDS_S = 1.0
"""Time that an ending process has to send what is left."""
COMPLAIN_EVERY_S = 60.0
MAX_QUEUED = 4096
MAX_CHARS = 256
"""Maximum length of one attribute."""

KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "consumer": SpanKind.CONSUMER}


class Ids(RandomIdGenerator):
    """Random ids, but for spans that more than one process may have to tell of."""

    def __init__(self) -> None:
        self._next: ContextVar[str | None] = ContextVar("identity", default=None)

    def name_next(self, identity: str | None) -> None:
        """Set the identity of the span that this task begins next."""
        self._next.set(identity)

    def generate_span_id(self) -> int:
        """Return the id that was named for the next span, or a random one."""
        identity = self._next.get()
        if identity is None:
            return int(super().generate_span_id())
        self._next.set(None)
        return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8]) or 1


class Seldom(logging.Filter):
    """Filter that passes one complaint of the exporter a minute.

    It complains of each attempt, and a collector may be away for a night.
    """

    def __init__(self) -> None:
        super().__init__()
        self._from = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether enough time has passed since the last complaint."""
        if record.created < self._from:
            return False
        self._from = record.created + COMPLAIN_EVERY_S
        return True


SELDOM = Seldom()


class OpenTelemetry:
    """The `Recorder` of one process."""

    def __init__(self, settings: TracingSettings, service: str, attributes: Attributes) -> None:
        self._ids = Ids()
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=resource_of(service, attributes),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attribute_length=MAX_CHARS),
        )
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(SELDOM)
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
        """Begin a span."""
        above = None if parent is None else NonRecordingSpan(context_of(parent))
        self._ids.name_next(identity)
        span = self._tracer.start_span(
            name,
            None if above is None else set_span_in_context(above),
            kind=KINDS[kind],
            attributes=dict(attributes),
            start_time=nanoseconds(at),
            record_exception=False,
            set_status_on_exception=False,
        )
        # Not where OTEL_SDK_DISABLED switches it off after all.
        return Recorded(span) if span.get_span_context().is_valid else NOTHING

    def flush(self) -> None:
        """Send what was recorded, for a few seconds at most."""
        _for_a_while(self._provider.force_flush)

    def close(self) -> None:
        """Send what was recorded, and stop."""
        _for_a_while(self._provider.shutdown)


def _for_a_while(send: Callable[[], object]) -> None:
    """Send what is left, but do not wait for a collector that is away."""
    sending = threading.Thread(target=send, name="last spans", daemon=True)
    sending.start()
    sending.join(LAST_WORDS_S)


class Recorded(Span):
    """A span that is recorded."""

    def __init__(self, span: ApiSpan) -> None:
        self._span = span
        context = span.get_span_context()
        trace, own = f"{context.trace_id:032x}", f"{context.span_id:016x}"
        flags = f"{context.trace_flags & TraceFlags.SAMPLED:02x}"
        self.traceparent = f"00-{trace}-{own}-{flags}"
        self.names = {"trace_id": trace, "span_id": own, "trace_flags": flags}

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        self._span.set_attributes(dict(attributes))

    def rename(self, name: str) -> None:
        """Change the span's name."""
        self._span.update_name(name)

    def event(self, name: str, attributes: Attributes = NONE) -> None:
        """Add an event."""
        self._span.add_event(name, dict(attributes))

    def link(self, traceparent: str | None) -> None:
        """Link the span of another trace; None: nothing."""
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
    """Return the span's context of a traceparent.

    Args:
        traceparent: of ours, or one that has gone through `spans.parse`.
    """
    _, trace, own, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(own, 16), True, TraceFlags(int(flags, 16)))


def nanoseconds(seconds: float | None) -> int | None:
    """Return seconds as whole nanoseconds."""
    return None if seconds is None else round(seconds * 1e9)
