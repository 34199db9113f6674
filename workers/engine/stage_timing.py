"""Timing of one image's stages, as Prometheus metrics and trace spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry.trace import Span

from service.tracing import spans
from workers import metrics
from workers.engine.row import Row

MARKS = 16
"""Maximum number of span events of one denoising, regardless of its steps."""


@contextmanager
def stage(model: str, name: str) -> Iterator[Span]:
    """Record a stage of one image as a span and, unless it fails, as a metric."""
    started = time.perf_counter()
    with spans.span(name) as span:
        yield span
    took_s = time.perf_counter() - started
    exemplar = spans.exemplar_of(spans.traceparent_of(span))
    metrics.stages.labels(model, name).observe(took_s, exemplar)


class InterleavedTimer:
    """Timer of one image's interleaved stages, each recorded once.

    The metric is the sum of a stage's times; its span lasts from first start to last end.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._seconds: dict[str, float] = {}
        self._spans: dict[str, Span] = {}
        self._ended: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time one run of a stage, within the stage's span."""
        started = time.perf_counter()
        if name not in self._spans:
            self._spans[name] = spans.begin(name)
        try:
            yield
        except Exception as error:
            spans.fail(self._spans[name], spans.kind_of(error))
            raise
        finally:
            took_s = time.perf_counter() - started
            self._seconds[name] = self._seconds.get(name, 0.0) + took_s
            self._ended[name] = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End all spans of the image; observe metrics only if no error occurred."""
        for name, seconds in self._seconds.items():
            self._spans[name].set_attribute("atelier.busy_s", seconds)
            self._spans[name].end(spans.nanoseconds(self._ended[name]))
            if error is None:
                exemplar = spans.exemplar_of(spans.traceparent_of(self._spans[name]))
                metrics.stages.labels(self._model, name).observe(seconds, exemplar)


def marking(span: Span, on_step: Callable[[Row], None]) -> Callable[[Row], None]:
    """Wrap `on_step` to also record evenly spaced steps, first and last included, on `span`."""
    if not span.is_recording():
        return on_step

    def marked(row: Row) -> None:
        total = row.to_do
        if row.done == total or (row.done - 1) % -(-total // (MARKS - 1)) == 0:
            span.add_event("step", {"atelier.step": row.done})
        on_step(row)

    return marked
