"""How long a step takes by batch size: measured, so that no constant decides how rows are batched.

Batching gains little where one row fills the device (a large transformer at 1024²) and a lot where
it does not (the same at 512²), so the same three rows may be best served as 4, as 2 or one by one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

TRIALS = 3
"""A batch size is judged only after that many steps: a first one may have been unlucky."""
MEMORY = 15
"""Latest steps of one size that count, so that the table follows a changing machine."""
REFRESH = 500
"""Steps after which sizes that were judged too slow get another trial."""


class StepTimes:
    """Seconds of a step of one shape and phase, by batch size."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self._steps = 0

    def observe(self, size: int, seconds: float) -> None:
        self._steps += 1
        if self._steps % REFRESH == 0:
            self._seconds.clear()
        self._seconds[size].append(seconds)

    def best(self, count: int, sizes: Sequence[int]) -> int:
        """The one of `sizes` (ascending) that serves `count` rows with the least time a row."""
        usable = [size for size in sizes if size <= count]
        if count not in usable:
            usable += [size for size in sizes if size > count][:1]
        return min(usable, key=lambda size: (self._estimate(size) / min(size, count), size))

    def _estimate(self, size: int) -> float:
        """Seconds of a step. Unmeasured sizes are hoped to be fast, so that each gets its trial."""
        trusted = {n: typical(t) for n, t in self._seconds.items() if len(t) >= TRIALS}
        smaller = max((n for n in trusted if n <= size), default=None)
        if smaller is not None:
            return trusted[smaller]  # itself, or: the additional rows might come for free
        larger = min(trusted, default=None)
        return 1.0 if larger is None else trusted[larger] * size / larger


def typical(seconds: Iterable[float]) -> float:
    """The lower quartile: a busy host makes many steps look slower than the device is."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]
