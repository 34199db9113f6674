"""Step latency by batch size and layout.

Measured, so that no constant decides how rows are batched, nor over how many devices each of them
is split.

Batching gains little where one row fills the device (a large transformer at 1024²) and a lot where
it does not (the same at 512²), so the same three rows may be best served as 4, as 2 or one by one;
and of a slice of several devices, each row by all of them or several rows side by side.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

TRIALS = 3
"""Number of steps before a batch layout is judged: a first one may have been unlucky."""
MEMORY = 15
"""Latest steps of a batch layout that count, so that the table follows a changing machine."""
REFRESH = 500
"""Steps after which batch layouts judged too slow get another trial."""
HOPE = 0.9
"""Assumed step time of a layout that was never tried, as a fraction of another's, so that it gets
tried."""


class BatchLayout(NamedTuple):
    """Compiled step of a batch: its size, and the parts of the slice."""

    size: int
    """Rows."""
    parts: int = 1
    """Parts of the slice that work on rows side by side; 1: the slice's own layout, the widest."""


class StepTimes:
    """Seconds of a step of one shape and phase, by batch layout."""

    def __init__(self) -> None:
        self._seconds: dict[BatchLayout, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self._steps = 0

    @property
    def steps(self) -> int:
        """Number of steps observed, in all batch layouts."""
        return self._steps

    def known(self) -> dict[BatchLayout, tuple[float, ...]]:
        """The latest seconds of a step by each batch layout after its trials. From any thread."""
        seconds = {
            batch_layout: tuple(times) for batch_layout, times in tuple(self._seconds.items())
        }
        return {
            batch_layout: times for batch_layout, times in seconds.items() if len(times) >= TRIALS
        }

    def observe(self, batch_layout: BatchLayout, seconds: float) -> None:
        """Take in the seconds of one step."""
        self._steps += 1
        if self._steps % REFRESH == 0:
            self._seconds.clear()
        self._seconds[batch_layout].append(seconds)

    def best(self, count: int, batch_layouts: Sequence[BatchLayout]) -> BatchLayout:
        """One of `batch_layouts` (ascending) that serves `count` rows with the least time a row."""
        usable = [one for one in batch_layouts if one.size <= count]
        if count not in (one.size for one in usable):
            larger = [one for one in batch_layouts if one.size > count]
            usable += [
                batch_layout for batch_layout in larger if batch_layout.size == larger[0].size
            ]
        return min(
            usable,
            key=lambda batch_layout: (
                self._estimate(batch_layout) / min(batch_layout.size, count),
                batch_layout,
            ),
        )

    def _estimate(self, batch_layout: BatchLayout) -> float:
        """Seconds of a step. Unmeasured layouts are assumed fast, so that each is tried."""
        trusted = {one: typical(times) for one, times in self.known().items()}
        alike = {
            one.size: seconds for one, seconds in trusted.items() if one.parts == batch_layout.parts
        }
        if not alike and trusted:
            others = {one.parts for one in trusted}
            return HOPE * min(
                self._estimate(BatchLayout(batch_layout.size, parts)) for parts in others
            )
        smaller = max((size for size in alike if size <= batch_layout.size), default=None)
        if smaller is not None:
            return alike[smaller]  # itself, or: the additional rows might come for free
        larger = min(alike, default=None)
        return 1.0 if larger is None else alike[larger] * batch_layout.size / larger


def typical(seconds: Iterable[float]) -> float:
    """The lower quartile: a busy host makes many steps look slower than the device is."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]


class Recent:
    """Recent times of something, and their median."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=MEMORY)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time what is done inside, unless it fails."""
        started = time.perf_counter()
        yield
        self.observe(time.perf_counter() - started)

    def observe(self, seconds: float) -> None:
        """Take in the seconds of one run."""
        self._seconds.append(seconds)

    @property
    def median(self) -> float | None:
        """Median of the latest times; None: it was never done. From any thread."""
        return median(times) if (times := tuple(self._seconds)) else None
