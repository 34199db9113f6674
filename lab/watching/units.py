"""Numbers formatted like Grafana's units."""

from __future__ import annotations

TIMES = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
LONG = ((86400, "d"), (3600, "h"), (60, "min"))
SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
AFTER = {"ops": "/s", "reqps": "/s", "Bps": "B/s", "bytes": "B", "flops": "FLOP/s"}
"""Suffix of the number, by unit."""


def shown(value: float, unit: str) -> str:
    """Format a number briefly with its unit."""
    if unit == "percentunit":
        return f"{digits(100 * value)} %"
    if unit == "s":
        return seconds(value)
    after = AFTER.get(unit, "")
    for scale, letter in SCALES:
        if abs(value) >= scale:
            return f"{digits(value / scale)} {letter}{after}"
    return f"{digits(value)} {after}".strip()


def seconds(value: float) -> str:
    for scale, name in LONG:
        if abs(value) >= 2 * scale:
            return f"{digits(value / scale)} {name}"
    for scale, name in TIMES:
        if abs(value) >= scale:
            return f"{digits(value / scale)} {name}"
    return "0 s" if value == 0 else f"{digits(value * 1e6)} µs"


def digits(value: float) -> str:
    """Format with at most three significant digits."""
    if value == round(value):
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
