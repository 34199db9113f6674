"""Interface of a span, and the no-op implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Attributes = Mapping[str, str | bool | int | float]
Kind = Literal["internal", "server", "consumer"]

ERROR_TYPE = "error.type"
NONE: Attributes = {}


class Span:
    """Span that is not recorded. The exported kind is in `opentelemetry.py`."""

    traceparent: str | None = None
    """Identifier of the span for other processes, in the format of W3C Trace Context."""
    names: Mapping[str, str] = {}
    """Ids of the span and its trace, for log lines."""

    def set(self, attributes: Attributes) -> None:
        """Set attributes of the span."""

    def rename(self, name: str) -> None:
        """Change the span's name."""

    def event(self, name: str, attributes: Attributes = NONE) -> None:
        """Add an event to the span."""

    def link(self, traceparent: str | None) -> None:
        """Link to a span of another trace."""

    def fail(self, kind: str) -> None:
        """Mark it as failed, with an error kind of low cardinality."""

    def end(self, at: float | None = None) -> None:
        """End the trace span.

        Args:
            at: seconds since the epoch; None: now.
        """


NOTHING = Span()
