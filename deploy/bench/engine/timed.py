"""An engine that notes how long each stage of each request took: what is timed is what serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workers.engine.engine import Engine

STAGES = ("encode", "denoise", "decode", "request")


@dataclass(frozen=True)
class Span:
    """Stage of one request, on the clock of `time.perf_counter`."""

    stage: str
    begun_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """Seconds between beginning and end."""
        return self.ended_at - self.begun_at


class TimedEngine(Engine):
    """Engine whose stages end when their results are there.

    Encoding and steps on the device, pixels on the host.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._spans: list[Span] = []

    def taken(self) -> list[Span]:
        """Return the spans noted since the last call."""
        spans, self._spans = self._spans, []
        return spans

    async def generate(self, *args: Any, **how: Any) -> Any:
        """Generate as the engine does, and note how long it took."""
        with self._noting("request"):
            return await super().generate(*args, **how)

    def _encode(self, *args: Any) -> Any:
        with self._noting("encode"):
            return super()._encode(*args)

    async def _denoise(self, *args: Any) -> Any:
        with self._noting("denoise"):
            return await super()._denoise(*args)

    async def _decode(self, *args: Any) -> Any:
        with self._noting("decode"):
            return await super()._decode(*args)

    @contextmanager
    def _noting(self, stage: str) -> Iterator[None]:
        begun_at = time.perf_counter()
        yield
        self._spans.append(Span(stage, begun_at, time.perf_counter()))
