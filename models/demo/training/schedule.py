"""A learning rate that ends where the time ends, on a machine of any speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[], float]
"""Function that returns how much of the run is done, 0 to 1."""


@dataclass
class Clock:
    """Seconds of training, over as many sittings as it takes."""

    budget_s: float
    spent_s: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, earlier runs' included."""
        return self.spent_s + time.monotonic() - self.started

    def progress(self) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        return min(self.elapsed_s / self.budget_s, 1.0)


def warmup_stable_decay(progress: float, *, warmup: float, decay: float) -> float:
    """Share of the peak rate: linear up, flat, then half a cosine down over the last `decay`."""
    if progress < warmup:
        return progress / warmup
    left = (1 - progress) / decay
    return 1.0 if left >= 1 else 0.5 - 0.5 * math.cos(math.pi * left)
