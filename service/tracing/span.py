"""A span as whoever works inside it knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Attributes = Mapping[str, str | bool | int | float]
Kind = Literal["internal", "server", "consumer"]

ERROR_TYPE = "error.type"
NONE: Attributes = {}


class Span:
    """Span that nobody records; `opentelemetry.py` has the other kind."""

    traceparent: str | None = None
    """Names it for others, as W3C Trace Context writes it."""
    names: Mapping[str, str] = {}
    """Ids of the span and its trace, as log lines show them."""

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""

    def rename(self, name: str) -> None:
        """Change the span's name."""

    def event(self, name: str, attributes: Attributes = NONE) -> None:
        """Add an event."""

    def link(self, traceparent: str | None) -> None:
        """Link to a span of another trace."""

    def fail(self, kind: str) -> None:
        """Mark it as failed, by a kind of error of which there are few."""

    def end(self, at: float | None = None) -> None:
        """End the span.

        Args:
            at: seconds since the epoch; None: now.
        """


NOTHING = Span()
