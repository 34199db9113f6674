"""Stages of one image, timed: for Prometheus, and as spans for whoever traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Self

from service.tracing import spans
from service.tracing.span import NOTHING, Span
from workers import metrics
from workers.engine.row import Row

Timed = Callable[[str, str], AbstractContextManager[Span]]
"""Context of one stage of one image: (model, stage) → its span."""
MARKS = 16
"""Events of one denoising at the most, whatever the number of its steps."""


@contextmanager
def stage(model: str, name: str) -> Iterator[Span]:
    """Time one image's stage, unless it fails."""
    started = time.perf_counter()
    with spans.span(name) as span:
        yield span
    took_s = time.perf_counter() - started
    metrics.stages.labels(model, name).observe(took_s, spans.exemplar_of(span.traceparent))


@contextmanager
def traced(model: str, name: str) -> Iterator[Span]:
    """Record the stage of an image that is no job's, as a span alone."""
    with spans.span(name) as span:
        yield span


class Turns:
    """Stages of one image that take turns, each recorded once.

    The sum of its times as a metric, and from its first to its last as a span.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._seconds: dict[str, float] = {}
        self._spans: dict[str, Span] = {}
        self._ended: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time one stage, with a span of its own."""
        started = time.perf_counter()
        if name not in self._spans:
            self._spans[name] = spans.begin(name)
        try:
            yield
        except Exception as error:
            self._spans[name].fail(spans.kind_of(error))
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
        """A metric tells of images alone that got through."""
        for name, seconds in self._seconds.items():
            self._spans[name].set({"atelier.busy_s": seconds})
            self._spans[name].end(self._ended[name])
            if error is None:
                exemplar = spans.exemplar_of(self._spans[name].traceparent)
                metrics.stages.labels(self._model, name).observe(seconds, exemplar)


def marking(span: Span, on_step: Callable[[Row], None]) -> Callable[[Row], None]:
    """Return `on_step` that also marks some of the steps on the span.

    Its first, its last, and others at even distances.
    """
    if span is NOTHING:
        return on_step

    def marked(row: Row) -> None:
        total = row.to_do
        if row.done == total or (row.done - 1) % -(-total // (MARKS - 1)) == 0:
            span.event("step", {"atelier.step": row.done})
        on_step(row)

    return marked
