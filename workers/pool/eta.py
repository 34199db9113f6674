"""Pace: how long an image still takes, by the steps of its pass that it has done here.

Those of a later pass are taken to last as long as theirs are of more pixels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from workers.engine.row import Row


@dataclass
class Eta:
    """Wall-clock time, neighbours and all."""

    row: Row
    """Row with its first step here done."""
    first: int = field(init=False)
    begun_at: float = field(init=False)
    latest: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.row.done
        self.begun_at = self.latest = time.monotonic()

    def step(self) -> None:
        """Count one more step."""
        self.latest = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of its steps; None: too few are done to tell."""
        done = self.row.done - self.first
        if not done:
            return None
        left = self.row.to_do - self.row.done + self.row.after_work
        return (self.latest - self.begun_at) / done * left
