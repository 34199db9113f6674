"""Human-readable durations."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format a duration with at least three digits, without an exponent: 0.712 ms, 1,263 s."""
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
