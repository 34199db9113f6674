"""Engine that records the duration of each request's stages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

from models.interface.pipeline import Fields, PreparedRow, PyTree
from workers.engine.engine import Engine
from workers.engine.generation import EngineOutput
from workers.engine.observer import UNOBSERVED, Observer
from workers.engine.snapshot import RowSnapshot
from workers.engine.stages import Stages
from workers.programs.bucket_programs import BucketPrograms

STAGES = ("encode", "denoise", "decode", "request")


@dataclass(frozen=True)
class Span:
    """Stage of one benchmark request, from start to end, in times of `time.perf_counter`."""

    stage: str
    begun_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """Duration of the benchmarked stage in seconds."""
        return self.ended_at - self.begun_at


class Recorder(Observer):
    """Recorder of all requests' spans.

    Denoising ends on the device, decoding on the host. `TimedStages` records encoding, without the
    wait for its thread.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def timed(self, model: str, stage: str) -> Iterator[trace.Span]:
        """Record a stage of a request."""
        if stage == "encode":
            yield trace.INVALID_SPAN
        else:
            with self.recording(stage):
                yield trace.INVALID_SPAN

    @contextmanager
    def recording(self, stage: str) -> Iterator[None]:
        """Record the start and the end of a request's stage as a span."""
        begun_at = time.perf_counter()
        yield
        self.spans.append(Span(stage, begun_at, time.perf_counter()))


class TimedStages(Stages):
    """Benchmark variant of an engine's stages, which records the time of encoding."""

    recorder: Recorder

    def encode(
        self, programs: BucketPrograms, prepared: PreparedRow, tenant: str | None = None
    ) -> PyTree:
        """Encode as `Stages` does, and record the duration on the device."""
        with self.recorder.recording("encode"):
            return super().encode(programs, prepared, tenant)


class TimedEngine(Engine):
    """Engine that records each stage of its requests, until the stage's results are ready."""

    stages_type = TimedStages

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recorder = Recorder()
        assert isinstance(self._stages, TimedStages)
        self._stages.recorder = self._recorder

    def taken(self) -> list[Span]:
        """Return the spans recorded since the last call."""
        spans, self._recorder.spans = self._recorder.spans, []
        return spans

    async def generate(
        self,
        fields: Fields,
        images: Mapping[str, bytes],
        observer: Observer = UNOBSERVED,
        begin: RowSnapshot | None = None,
        tenant: str = "",
    ) -> EngineOutput:
        """Generate as the engine does, and record the request's duration; ignores the observer."""
        with self._recorder.recording("request"):
            return await super().generate(fields, images, self._recorder, begin, tenant)
