"""Remaining time of an image, from the pace of its steps in this worker.

Steps of a later pass are assumed to take longer in proportion to their pixels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from workers.engine.row import ImageRow


@dataclass
class Eta:
    """Estimate of an image's remaining wall-clock time, including delays by other images."""

    row: ImageRow
    """Row with its first step in this worker done."""
    first: int = field(init=False)
    begun_at: float = field(init=False)
    latest: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.row.done
        self.begun_at = self.latest = time.monotonic()

    def step(self) -> None:
        """Record the time at which a step has ended."""
        self.latest = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of the remaining steps; None: too few are done."""
        done = self.row.done - self.first
        if not done:
            return None
        left = self.row.to_do - self.row.done + self.row.after_work
        return (self.latest - self.begun_at) / done * left
