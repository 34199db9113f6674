"""A stopwatch with names. Imports nothing that a start would have to import."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

Times = dict[str, tuple[float, float]]
"""Seconds of the clock and of the processor, by part."""


class Parts:
    def __init__(self) -> None:
        self.times: Times = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is done inside counts there; a part inside another begins with blanks."""
        clock, processor = time.perf_counter(), time.process_time()
        yield
        before = self.times.get(name, (0.0, 0.0))
        self.times[name] = (
            before[0] + time.perf_counter() - clock,
            before[1] + time.process_time() - processor,
        )
