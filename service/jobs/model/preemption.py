"""State of a full pool that asks whether a queued job should preempt what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Held:
    """A running job that may be put aside."""

    id: str
    fence: int
    left_s: float
    """Seconds until its steps are done."""
    pictures: int
    """Slots that it takes."""


@dataclass(frozen=True)
class FullPool:
    """A pool without a free slot, as preemption sees it."""

    pool: str
    model: str
    slots: int
    free: int
    """Slots: none or, of a pool that has claimed beyond them, less."""
    soonest_s: float
    """Time until a slot becomes free by itself."""
    held: Sequence[Held]
    """Jobs of the pool that may be preempted."""
    warm: Sequence[str] = ()
    """Warm buckets, as `Queue.claim` takes them."""
    slowness: float = 1.0
    slowness_in: Mapping[str, float] = field(default_factory=dict)
