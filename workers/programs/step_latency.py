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
"""A way is judged only after that many steps: a first one may have been unlucky."""
MEMORY = 15
"""Latest steps of one way that count, so that the table follows a changing machine."""
REFRESH = 500
"""Steps after which ways that were judged too slow get another trial."""
HOPE = 0.9
"""Assumed step time of a layout that was never tried, as a fraction of another's, so that it gets
tried."""


class Way(NamedTuple):
    """Compiled step of a batch: its size, and the parts of the slice."""

    size: int
    """Rows."""
    parts: int = 1
    """Parts of the slice that work on rows side by side; 1: the slice's own layout, the widest."""


class StepTimes:
    """Seconds of a step of one shape and phase, by the way it is done."""

    def __init__(self) -> None:
        self._seconds: dict[Way, deque[float]] = defaultdict(lambda: deque(maxlen=MEMORY))
        self._steps = 0

    @property
    def steps(self) -> int:
        """Number of steps observed, in all batch layouts."""
        return self._steps

    def known(self) -> dict[Way, tuple[float, ...]]:
        """The latest seconds of a step in each way that has had its trials. From any thread."""
        seconds = {way: tuple(times) for way, times in tuple(self._seconds.items())}
        return {way: times for way, times in seconds.items() if len(times) >= TRIALS}

    def observe(self, way: Way, seconds: float) -> None:
        """Take in the seconds of one step."""
        self._steps += 1
        if self._steps % REFRESH == 0:
            self._seconds.clear()
        self._seconds[way].append(seconds)

    def best(self, count: int, ways: Sequence[Way]) -> Way:
        """The one of `ways` (ascending) that serves `count` rows with the least time a row."""
        usable = [way for way in ways if way.size <= count]
        if count not in (way.size for way in usable):
            larger = [way for way in ways if way.size > count]
            usable += [way for way in larger if way.size == larger[0].size]
        return min(usable, key=lambda way: (self._estimate(way) / min(way.size, count), way))

    def _estimate(self, way: Way) -> float:
        """Seconds of a step. Unmeasured ways are hoped to be fast, so that each gets its trial."""
        trusted = {one: typical(times) for one, times in self.known().items()}
        alike = {one.size: seconds for one, seconds in trusted.items() if one.parts == way.parts}
        if not alike and trusted:
            others = {one.parts for one in trusted}
            return HOPE * min(self._estimate(Way(way.size, parts)) for parts in others)
        smaller = max((size for size in alike if size <= way.size), default=None)
        if smaller is not None:
            return alike[smaller]  # itself, or: the additional rows might come for free
        larger = min(alike, default=None)
        return 1.0 if larger is None else alike[larger] * way.size / larger


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
