"""Adapter that a request names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleInterval:
    """Scale of an adapter in a part of the steps."""

    start: float
    """Share of the steps before it, 0 to 1."""
    stop: float
    scale: float


@dataclass(frozen=True)
class RequestedAdapter:
    """Adapter of a request, as it is known before its file is read."""

    digest: str
    """Identity of its file."""
    pages: int
    networks: frozenset[str]
    """Names of the networks that it changes."""
    scales: tuple[ScaleInterval, ...]
    """Intervals of its scale, which is 0 outside of them."""

    def scale(self, step: int, steps: int) -> float:
        """Return its scale in a step, counted from 0."""
        inside = (one.scale for one in self.scales if one.start * steps <= step < one.stop * steps)
        return next(inside, 0.0)


def always(scale: float) -> tuple[ScaleInterval, ...]:
    """Return the intervals of a scale that all steps have."""
    return (ScaleInterval(0.0, 1.0, scale),)
