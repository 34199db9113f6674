"""Stopwatch with named parts. Imports nothing, because imports are measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

Times = dict[str, tuple[float, float]]
"""Seconds of wall clock and processor, by part."""


class Parts:
    def __init__(self) -> None:
        self.times: Times = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block under this name; indent names of nested parts."""
        clock, processor = time.perf_counter(), time.process_time()
        yield
        before = self.times.get(name, (0.0, 0.0))
        self.times[name] = (
            before[0] + time.perf_counter() - clock,
            before[1] + time.process_time() - processor,
        )
