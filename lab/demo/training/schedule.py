"""Learning rate schedule over a time budget, independent of the machine's speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[], float]
"""Function that returns the completed fraction of the run, 0 to 1."""


@dataclass
class Clock:
    """Clock of training time, summed over resumed runs."""

    budget_s: float
    spent_s: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, including earlier runs."""
        return self.spent_s + time.monotonic() - self.started

    def progress(self) -> float:
        """Return the spent fraction of the budget, from 0 to 1."""
        return min(self.elapsed_s / self.budget_s, 1.0)


def warmup_stable_decay(progress: float, *, warmup: float, decay: float) -> float:
    """Return the fraction of the peak rate: linear warmup, constant, then cosine decay."""
    if progress < warmup:
        return progress / warmup
    remaining = (1 - progress) / decay
    return 1.0 if remaining >= 1 else 0.5 - 0.5 * math.cos(math.pi * remaining)
