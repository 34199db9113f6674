"""Trace spans of this process, recorded with OpenTelemetry's API.

Tracing is off unless `exporting` is entered with an endpoint: only then the SDK and its exporter
are imported (`exporter.py`). While off, spans are the API's no-ops, which pass on their parent's
trace.

Spans never contain clients' content, such as prompts. Errors are identified by code or class, not
by text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
    use_span,
)

from service.settings.installation import how_to_install
from service.settings.section import ConfigError
from service.settings.telemetry import TracingSettings
from service.tracing.log_context import note

if TYPE_CHECKING:
    from service.tracing.exporter import Exporter

Attributes = Mapping[str, str | bool | int | float]

ERROR_TYPE = "error.type"
NONE: Attributes = {}

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_OP = NoOpTracer()

_exporter: Exporter | None = None
_common: ContextVar[Attributes] = ContextVar("of all spans", default=NONE)


@contextmanager
def exporting(
    settings: TracingSettings, service: str, attributes: Attributes = NONE
) -> Iterator[None]:
    """Send this process's spans to the settings' collector, if configured.

    Args:
        service: role of this process, as `service.name`.

    Raises: ConfigError: OpenTelemetry's SDK is not installed, or rejects its variables.
    """
    global _exporter
    if settings.endpoint is None:
        yield
        return
    _exporter = exporter = _connect(settings, service, attributes)
    try:
        yield
    finally:
        _exporter = None
        exporter.close()


def _connect(settings: TracingSettings, service: str, attributes: Attributes) -> Exporter:
    try:
        from service.tracing.exporter import Exporter
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing.endpoint is set, but {error.name} is missing: {how_to_install('otel')},"
            " or leave the endpoint out"
        ) from None
    try:
        return Exporter(settings, service, attributes)
    except ValueError as error:
        raise ConfigError(f"tracing: OpenTelemetry's own variables (OTEL_…): {error}") from None


def flush() -> None:
    """Send ended spans to the collector, within a second.

    Call it before an exit that might skip cleanup.
    """
    if _exporter is not None:
        _exporter.flush()


def begin(
    name: str,
    attributes: Attributes = NONE,
    *,
    parent: str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    at: float | None = None,
    identity: str | None = None,
) -> Span:
    """Start a span, which the caller ends.

    Args:
        parent: a valid traceparent; default: this task's current span, if any.
        at: start time in seconds since the epoch; default: now.
        identity: text that determines the span's id, so that several processes can record the same
            span of a trace.
    """
    tracer = _NO_OP if _exporter is None else _exporter.tracer_of(identity)
    context = None if parent is None else _context_of(parent)
    merged = {**_common.get(), **attributes}
    return tracer.start_span(name, context, kind, merged, start_time=nanoseconds(at))


@contextmanager
def span(name: str, attributes: Attributes = NONE) -> Iterator[Span]:
    """Run a block in a new child span of the current span."""
    with within(begin(name, attributes)) as opened:
        yield opened


@contextmanager
def with_attributes(attributes: Attributes) -> Iterator[None]:
    """Add attributes to all spans that start in this block."""
    token = _common.set({**_common.get(), **attributes})
    try:
        yield
    finally:
        _common.reset(token)


@contextmanager
def within(inner: Span) -> Iterator[Span]:
    """Make a span current in this block, end it afterwards, and put its ids in log lines."""
    ids = log_ids(inner)
    if not ids:
        yield inner
        return
    outer = log_ids(get_current_span())
    note(**ids)
    try:
        with use_span(inner, record_exception=False, set_status_on_exception=False):
            yield inner
    except Exception as error:
        fail(inner, kind_of(error))
        raise
    finally:
        inner.end()
        note(**{name: outer.get(name) for name in ids})


def fail(failed: Span, kind: str) -> None:
    """Mark a span as failed, with an error kind of low cardinality."""
    failed.set_attribute(ERROR_TYPE, kind)
    failed.set_status(StatusCode.ERROR, kind)


def kind_of(error: BaseException) -> str:
    """Return an error's code if it has one of ours, or its class, but not its text."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


def link(source: Span, traceparent: str | None) -> None:
    """Link a span to one of another trace; a malformed traceparent is ignored."""
    valid = parse(traceparent)
    if valid is not None:
        source.add_link(_span_context(valid))


def log_ids(of: Span) -> dict[str, str]:
    """Return the ids of a span and its trace, for log lines; empty if it has none."""
    context = of.get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
        "trace_flags": f"{context.trace_flags & TraceFlags.SAMPLED:02x}",
    }


def traceparent_of(source: Span) -> str | None:
    """Return a span's identifier for other processes, in the format of W3C Trace Context."""
    return "-".join(("00", *ids.values())) if (ids := log_ids(source)) else None


def current_traceparent() -> str | None:
    """Return the traceparent of this task's current span; None without a span."""
    return traceparent_of(get_current_span())


def trace_of(traceparent: str | None) -> str | None:
    """Return the trace id in a traceparent; None if malformed."""
    valid = parse(traceparent)
    return None if valid is None else valid.split("-")[1]


def exemplar_of(traceparent: str | None) -> dict[str, str] | None:
    """Return a traceparent's ids as exemplar labels; None: no span, or not recorded."""
    valid = parse(traceparent)
    if valid is None or not int(valid[-2:], 16) & TraceFlags.SAMPLED:
        return None
    _, trace, span, _ = valid.split("-")
    return {"trace_id": trace, "span_id": span}


def parse(traceparent: str | None) -> str | None:
    """Validate and normalize a client's traceparent; None: invalid, to be ignored."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match is None:
        return None
    version, trace, parent, flags, suffix = match.groups()
    is_odd = version == "ff" or (version == "00" and suffix is not None)
    if is_odd or not int(trace, 16) or not int(parent, 16):
        return None
    return f"00-{trace}-{parent}-{int(flags, 16) & TraceFlags.SAMPLED:02x}"


def _context_of(traceparent: str) -> Context:
    return set_span_in_context(NonRecordingSpan(_span_context(traceparent)))


def _span_context(traceparent: str) -> SpanContext:
    _, trace, parent, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(parent, 16), True, TraceFlags(int(flags, 16)))


def nanoseconds(seconds: float | None) -> int | None:
    """Convert seconds to whole nanoseconds, OpenTelemetry's unit of time."""
    return None if seconds is None else round(seconds * 1e9)
