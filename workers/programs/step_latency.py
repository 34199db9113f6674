"""Step latency by batch size and layout.

It is measured, so that no constant decides how rows are batched, or how many devices each row uses.

Batching gains little where one row fills the device (a large transformer at 1024²), and much where
it does not (the same at 512²). So three rows may run fastest as a batch of 4, of 2, or separately.
On a slice of several devices, each row may use all devices, or several rows may run in parallel.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

TRIALS = 3
"""Steps before a batch layout is judged, since the first may be an outlier."""
MEMORY = 15
"""Latest steps of a batch layout that count, so that the table follows a changing machine."""
REFRESH = 500
"""Steps after which batch layouts judged too slow are tried again."""
HOPE = 0.9
"""Assumed step time of an untried layout, as a fraction of another's, so that it is tried."""


class BatchLayout(NamedTuple):
    """Compiled form of a step: batch size, and the number of parts of the slice."""

    size: int
    """Number of rows in the batch."""
    parts: int = 1
    """Parts of the slice that run rows in parallel; 1: all devices share each row."""


class StepTimes:
    """Measured step seconds of one step kind, by batch layout."""

    def __init__(self) -> None:
        self._seconds: dict[BatchLayout, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self._steps = 0

    @property
    def steps(self) -> int:
        """Number of steps observed, in all batch layouts."""
        return self._steps

    def measured(self) -> dict[BatchLayout, tuple[float, ...]]:
        """Return the latest step seconds of each tried batch layout. Callable from any thread."""
        seconds = {
            batch_layout: tuple(times) for batch_layout, times in tuple(self._seconds.items())
        }
        return {
            batch_layout: times for batch_layout, times in seconds.items() if len(times) >= TRIALS
        }

    def observe(self, batch_layout: BatchLayout, seconds: float) -> None:
        """Record the seconds of one step with a batch layout."""
        self._steps += 1
        if self._steps % REFRESH == 0:
            self._seconds.clear()
        self._seconds[batch_layout].append(seconds)

    def best(self, count: int, batch_layouts: Sequence[BatchLayout]) -> BatchLayout:
        """Choose the batch layout that serves `count` rows with the least time per row.

        Args:
            batch_layouts: candidates, ascending.
        """
        usable = [candidate for candidate in batch_layouts if candidate.size <= count]
        if count not in (candidate.size for candidate in usable):
            larger = [candidate for candidate in batch_layouts if candidate.size > count]
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
        """Estimate a step's seconds; unmeasured layouts count as fast, so that each is tried."""
        trusted = {layout: typical(times) for layout, times in self.measured().items()}
        alike = {
            layout.size: seconds
            for layout, seconds in trusted.items()
            if layout.parts == batch_layout.parts
        }
        if not alike and trusted:
            others = {layout.parts for layout in trusted}
            return HOPE * min(
                self._estimate(BatchLayout(batch_layout.size, parts)) for parts in others
            )
        smaller = max((size for size in alike if size <= batch_layout.size), default=None)
        if smaller is not None:
            return alike[smaller]  # its own time, or a smaller batch's: more rows may be free
        larger = min(alike, default=None)
        return 1.0 if larger is None else alike[larger] * batch_layout.size / larger


def typical(seconds: Iterable[float]) -> float:
    """Return the lower quartile of step times: a busy host makes many of them appear slower."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4]


class Recent:
    """Recent durations of one operation, for their median."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=MEMORY)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time an operation inside the context, and record it unless it fails."""
        started = time.perf_counter()
        yield
        self.observe(time.perf_counter() - started)

    def observe(self, seconds: float) -> None:
        """Record the duration of one run of the operation."""
        self._seconds.append(seconds)

    @property
    def median(self) -> float | None:
        """Median of the latest durations; None: never measured. Callable from any thread."""
        return median(times) if (times := tuple(self._seconds)) else None
