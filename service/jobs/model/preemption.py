"""State of a full worker, from which the queue decides whether to preempt one of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preemptible:
    """Running job that may be preempted."""

    id: str
    fence: int
    left_s: float
    """Seconds until its steps are done."""
    image_count: int
    """Number of slots that it takes."""


@dataclass(frozen=True)
class FullPool:
    """Worker without a free slot, as input of the preemption decision."""

    pool: str
    model: str
    slots: int
    free: int
    """Number of free slots: 0, or negative if the worker has claimed more images than slots."""
    soonest_s: float
    """Time until a slot becomes free without preemption."""
    held: Sequence[Preemptible]
    """Jobs of the worker that may be preempted."""
    warm: Sequence[str] = ()
    """Compiled buckets, as for `Queue.claim`."""
    slowness: float = 1.0
    slowness_in: Mapping[str, float] = field(default_factory=dict)
