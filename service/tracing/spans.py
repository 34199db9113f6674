"""Trace spans of this process, sent to a collector if the settings name one.

Tracing is off unless `exporting` is entered with an endpoint. Only then OpenTelemetry is imported
(`opentelemetry.py`). While off, every span is `NOTHING`, which costs almost nothing.

Spans never contain clients' content, such as prompts. Errors are identified by code or class, not
by text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from service.settings.installation import how_to_install
from service.settings.section import ConfigError
from service.settings.tracing import TracingSettings
from service.tracing.log_context import note
from service.tracing.span import NONE, NOTHING, Attributes, Kind, Span

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class Recorder(Protocol):
    """Backend that records trace spans."""

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

    def flush(self) -> None:
        """Send recorded spans to the collector."""

    def close(self) -> None:
        """Send recorded spans, and stop the exporter."""


_recorder: Recorder | None = None
_current: ContextVar[Span] = ContextVar("span", default=NOTHING)
_common: ContextVar[Attributes] = ContextVar("of all spans", default=NONE)


@contextmanager
def exporting(
    settings: TracingSettings, service: str, attributes: Attributes = NONE
) -> Iterator[None]:
    """Send this process's spans to the settings' collector, if configured.

    Args:
        service: role of this process, as `service.name`.

    Raises: ConfigError: OpenTelemetry is not installed, or rejects its variables.
    """
    global _recorder
    if settings.endpoint is None:
        yield
        return
    _recorder = _connect(settings, service, attributes)
    try:
        yield
    finally:
        recorder, _recorder = _recorder, None
        recorder.close()


def _connect(settings: TracingSettings, service: str, attributes: Attributes) -> Recorder:
    try:
        from service.tracing.opentelemetry import OpenTelemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing.endpoint is set, but {error.name} is missing: {how_to_install('otel')},"
            " or leave the endpoint out"
        ) from None
    try:
        return OpenTelemetry(settings, service, attributes)
    except ValueError as error:
        raise ConfigError(f"tracing: OpenTelemetry's own variables (OTEL_…): {error}") from None


def flush() -> None:
    """Send ended spans to the collector, within a second.

    Call it before an exit that might skip cleanup.
    """
    if _recorder is not None:
        _recorder.flush()


def current() -> Span:
    """Return the current span of this task."""
    return _current.get()


def begin(
    name: str,
    attributes: Attributes = NONE,
    *,
    parent: str | None = None,
    kind: Kind = "internal",
    at: float | None = None,
    identity: str | None = None,
) -> Span:
    """Start a span, which the caller ends.

    Args:
        parent: a traceparent; default: this task's current span, if any.
        at: start time in seconds since the epoch; default: now.
        identity: text that determines the span's id, so that several processes can record the same
            span of a trace.
    """
    if _recorder is None:
        return NOTHING
    parent_id, merged = parent or current().traceparent, {**_common.get(), **attributes}
    return _recorder.begin(name, merged, parent=parent_id, kind=kind, at=at, identity=identity)


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
    if inner is NOTHING:
        yield inner
        return
    outer = current()
    token = _current.set(inner)
    note(**inner.names)
    try:
        yield inner
    except Exception as error:
        inner.fail(kind_of(error))
        raise
    finally:
        inner.end()
        _current.reset(token)
        note(**{name: outer.names.get(name) for name in inner.names})


def kind_of(error: BaseException) -> str:
    """Return an error's code if it has one of ours, or its class, but not its text."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


def trace_of(traceparent: str | None) -> str | None:
    """Return the trace id of a traceparent; None if malformed."""
    valid = parse(traceparent)
    return None if valid is None else valid.split("-")[1]


def exemplar_of(traceparent: str | None) -> dict[str, str] | None:
    """Return a span as labels of an exemplar; None: no span, or not recorded."""
    valid = parse(traceparent)
    if valid is None or not int(valid[-2:], 16) & _SAMPLED:
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
    return f"00-{trace}-{parent}-{int(flags, 16) & _SAMPLED:02x}"
