"""Observer of one image: what an engine reports while it generates the image."""

from __future__ import annotations

from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from models.interface.pipeline import PreparedRow
from service.jobs.model.job import Stage
from service.tracing import spans
from workers.engine import stage_timing
from workers.engine.row import ImageRow
from workers.programs.compilation import Compilation


class Observer:
    """Observer of one image's generation, whose methods do nothing. Override those you need.

    The engine calls all of them in its event loop.
    """

    def on_prepared(self, prepared: PreparedRow) -> None:
        """Receive the prepared request, once."""

    def on_inputs_read(self, cpu_s: float) -> None:
        """Receive the CPU time of preparing a pass that has input images."""

    def on_compile(self, compilation: Compilation) -> None:
        """Receive a compilation that this image pays for, as the first to need its programs."""

    def on_stage(self, stage: Stage, expected_s: float | None = None) -> None:
        """Record that a stage begins; for `compiling` with its expected seconds, if known."""

    def on_step(self, row: ImageRow) -> None:
        """Record that the row has finished a step."""

    def timed(self, model: str, stage: str) -> AbstractContextManager[Span]:
        """Return a context manager that times a stage, by default as metric and trace span."""
        return stage_timing.stage(model, stage)


class TracedOnly(Observer):
    """Observer of an image that belongs to no job: its stages are trace spans, without metrics."""

    def timed(self, model: str, stage: str) -> AbstractContextManager[Span]:
        """Return a trace span for the stage."""
        return spans.span(stage)


UNOBSERVED = Observer()
