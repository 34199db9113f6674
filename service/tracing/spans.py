"""Spans: what this process does and for how long, told to a collector of traces where one is named.

Off unless `exporting` is entered with an endpoint; then, and only then, OpenTelemetry is imported
(`otel.py`). While it is off, every span is `NOTHING`, which costs next to nothing.

What a client asks for, its prompt before all, is never said here; an error is told by its code or
class, not by its text.
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

_CURRENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class Recorder(Protocol):
    """Recorder of spans, somewhere or nowhere."""

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

    def flush(self) -> None:
        """Send what was recorded."""

    def close(self) -> None:
        """Send what was recorded, and stop."""


_recorder: Recorder | None = None
_here: ContextVar[Span] = ContextVar("span", default=NOTHING)
_of_all: ContextVar[Attributes] = ContextVar("of all spans", default=NONE)


@contextmanager
def exporting(
    settings: TracingSettings, service: str, attributes: Attributes = NONE
) -> Iterator[None]:
    """Send this process's spans to the settings' collector, if they name one.

    Args:
        service: what this process is, of several of its kind.

    Raises: ConfigError: OpenTelemetry is not installed, or refuses what its variables say.
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
    """Send what has ended by now, if that takes no more than a second.

    Nobody knows whether this process will come to its tidy end.
    """
    if _recorder is not None:
        _recorder.flush()


def here() -> Span:
    """The span that this task is in."""
    return _here.get()


def begin(
    name: str,
    attributes: Attributes = NONE,
    *,
    parent: str | None = None,
    kind: Kind = "internal",
    at: float | None = None,
    identity: str | None = None,
) -> Span:
    """A span for the caller to end.

    Args:
        parent: a traceparent; left out: the span that this task is in, or none.
        at: its begin, in seconds since the epoch; left out: now.
        identity: whoever begins a span by the same text in the same trace means the same span.
    """
    if _recorder is None:
        return NOTHING
    above, said = parent or here().traceparent, {**_of_all.get(), **attributes}
    return _recorder.begin(name, said, parent=above, kind=kind, at=at, identity=identity)


@contextmanager
def span(name: str, attributes: Attributes = NONE) -> Iterator[Span]:
    """Open a span for this block, below the span that this task is in."""
    with within(begin(name, attributes)) as one:
        yield one


@contextmanager
def saying(attributes: Attributes) -> Iterator[None]:
    """Add attributes to all spans that begin in this block."""
    token = _of_all.set({**_of_all.get(), **attributes})
    try:
        yield
    finally:
        _of_all.reset(token)


@contextmanager
def within(one: Span) -> Iterator[Span]:
    """Make a span the parent of what begins in this block, and end it; log lines name it."""
    if one is NOTHING:
        yield one
        return
    above = here()
    token = _here.set(one)
    note(**one.names)
    try:
        yield one
    except Exception as error:
        one.fail(kind_of(error))
        raise
    finally:
        one.end()
        _here.reset(token)
        note(**{name: above.names.get(name) for name in one.names})


def kind_of(error: BaseException) -> str:
    """Return an error's code where it has one of ours, or its class: never its text."""
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else type(error).__name__


def trace_of(traceparent: str | None) -> str | None:
    """The id of its trace, if it is well formed."""
    known = parse(traceparent)
    return None if known is None else known.split("-")[1]


def exemplar_of(traceparent: str | None) -> dict[str, str] | None:
    """Return a span as labels of an exemplar; None: there is none, or it is not recorded."""
    known = parse(traceparent)
    if known is None or not int(known[-2:], 16) & _SAMPLED:
        return None
    _, trace, span, _ = known.split("-")
    return {"trace_id": trace, "span_id": span}


def parse(traceparent: str | None) -> str | None:
    """A client's header in our own spelling; None: it is none, and is ignored."""
    found = _CURRENT.fullmatch(traceparent or "")
    if found is None:
        return None
    version, trace, above, flags, more = found.groups()
    is_odd = version == "ff" or (version == "00" and more is not None)
    if is_odd or not int(trace, 16) or not int(above, 16):
        return None
    return f"00-{trace}-{above}-{int(flags, 16) & _SAMPLED:02x}"
