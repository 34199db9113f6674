"""Step loop: what keeps the device at work, in a thread of its own.

It does nothing but choose a batch, send its step, and look at the flags of the step before:
whatever else an image needs is done elsewhere, beside it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.profiler import TraceAnnotation

from models.interface.pipeline import PyTree
from workers.engine.batching import Batch, next_batch
from workers.engine.errors import (
    EngineDied,
    GenerationFailed,
    generation_failed,
    is_out_of_memory,
    non_finite,
)
from workers.engine.row import Row
from workers.engine.step_metrics import StepMetrics
from workers.engine.trace_marks import NO_WORK, STEP
from workers.programs.device_weights import Weights

log = logging.getLogger(__name__)

AHEAD = 1
"""Steps sent beyond the one that is looked at: enough that the device never waits, and few enough
that a canceled row sees at most one more step begin."""


@dataclass(frozen=True)
class Sent:
    """A batch on its way through the device."""

    batch: Batch
    epochs: tuple[int, ...]
    """Epochs of its rows when it was sent."""
    states: tuple[PyTree, ...]
    finite: jax.Array
    sent_at: float
    work: float
    """Work of its rows' step, in the mean, as a multiple of the usual one."""


class StepLoop:
    """Rows come in by `submit`, from any thread, and leave by their `on_end`.

    Args:
        slots: rows that are stepped together at the most; others wait in order.
        fetch: brings an array to the host, when it has been computed.
        on_death: told, in the loop's thread, of an error of the loop's own. It has ended then.
    """

    def __init__(
        self,
        meter: StepMetrics,
        weights: Weights,
        slots: int,
        fetch: Callable[[jax.Array], np.ndarray],
        on_death: Callable[[Exception], None],
    ) -> None:
        self._meter = meter
        self._weights = weights
        self._slots = slots
        self._fetch = fetch
        self._on_death = on_death
        self._waiting: deque[Row] = deque()
        self._seated: list[Row] = []
        self._in_flight: deque[Sent] = deque()
        self._tickets = itertools.count(1)
        self._free_since = 0.0
        """End of the last step that was looked at."""
        self._at_work = 0.0
        """Time at which the loop last woke up or sent a step."""
        self._wake = threading.Event()
        self._on_empty: Callable[[], Any] | None = None
        self.settled = 0
        """Steps of batches that have ended."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="step_loop", daemon=True)
        meter.has(slots)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def load(self) -> int:
        """Rows that are here, with and without a slot."""
        return len(self._waiting) + len(self._seated)

    def when_empty(self, on_empty: Callable[[], Any]) -> None:
        """Tell once, in the loop's thread, that no row is here and no step under way."""
        self._on_empty = on_empty
        self._wake.set()

    def submit(self, row: Row) -> None:
        """Let a row take part from the next batch on."""
        self._waiting.append(row)
        self._wake.set()

    def hold(self, row: Row, on_still: Callable[[], Any]) -> None:
        """Send no further step of this row.

        Args:
            on_still: told once, in the loop's thread, when none is under way any more; never of a
                row that has left the loop.
        """
        row.on_still, row.held = on_still, True
        self._wake.set()

    def go_on(self, row: Row) -> None:
        """Step a row that was held."""
        row.on_still, row.held = None, False
        self._wake.set()

    def close(self, wait_s: float | None = None) -> None:
        """End after the step in flight; rows that are not done are left where they are.

        Args:
            wait_s: for that end; None: for as long as it takes.
        """
        self._closing = True
        self._wake.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_turn()
        except Exception as error:
            log.exception("the step loop died")
            self._on_death(error)

    def _take_turn(self) -> None:
        """Send one step if there is one to send, then look at an earlier one."""
        self._wake.clear()
        self._seat()
        batch = next_batch(self._seated, self._weights.resident)
        if batch is not None and self._in_flight and not self._is_present(batch):
            batch = None  # a swap frees what the steps in flight still use
        if batch is not None:
            self._send(batch)
        if self._in_flight and (batch is None or len(self._in_flight) > AHEAD):
            self._settle(self._in_flight.popleft())
        elif batch is None:
            if (tell := self._on_empty) and not self.load:
                self._on_empty = None
                tell()
            with TraceAnnotation(NO_WORK):
                self._wake.wait()
            self._at_work = time.perf_counter()

    def _seat(self) -> None:
        """Free the slots of rows that are canceled; give free slots to waiting rows."""
        for row in [row for row in self._seated if row.canceled]:
            self._end(row, None)
        stepping = sum(not row.all_sent for row in self._seated)
        while self._waiting and stepping < self._slots:
            row = self._waiting.popleft()
            if not row.canceled:
                row.seated = next(self._tickets)
                self._seated.append(row)
                stepping += 1
        self._meter.set_busy_slots(stepping)
        for row in (*self._seated, *self._waiting):
            row.notify_if_still()

    def _send(self, batch: Batch) -> None:
        epochs = tuple(row.epoch for row in batch.rows)
        try:
            weights = self._bring_weights(batch)
            sent_at, work = time.perf_counter(), batch.work
            states, finite = batch.run(weights)
        except EngineDied:
            raise
        except Exception as error:
            self._settle_all()  # in order: this error may only repeat an earlier step's
            self._fail(batch, epochs, error)
            return
        self._count_wait()
        for row, state in zip(batch.rows, states, strict=False):
            row.send(state, next(self._tickets))
        self._in_flight.append(Sent(batch, epochs, states, finite, sent_at, work))

    def _is_present(self, batch: Batch) -> bool:
        """Return whether the network that this step needs is on the device."""
        return batch.phase.expert in (None, self._weights.resident)

    def _bring_weights(self, batch: Batch) -> list[Any]:
        """Return the weights of this step, swapped in if need be. That is no wait for the host."""
        is_present = self._is_present(batch)
        weights = self._weights.load_expert(batch.phase.expert)
        if not is_present:
            self._at_work = time.perf_counter()
        return weights

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle(self._in_flight.popleft())

    def _settle(self, sent: Sent) -> None:
        """Wait for a step to end, and see how it went."""
        try:
            with TraceAnnotation(STEP):
                finite = self._fetch(sent.finite)
        except EngineDied:
            raise
        except Exception as error:
            self._fail(sent.batch, sent.epochs, error)
            return
        share = self._measure(sent) / len(sent.batch.rows)
        self.settled += 1
        results = zip(sent.batch.rows, sent.epochs, sent.states, finite, strict=False)
        for row, epoch, state, is_finite in results:
            if row.epoch == epoch:
                self._advance(row, state, is_finite, share)

    def _advance(self, row: Row, state: PyTree, is_finite: bool, device_seconds: float) -> None:
        if not is_finite:
            self._end(row, non_finite(row.image_done + 1, row.image_steps))
            return
        row.advance(state, device_seconds)
        row.on_step(row)
        if row.is_done:
            self._end(row, None)

    def _fail(self, batch: Batch, epochs: tuple[int, ...], error: Exception) -> None:
        """A whole batch failed: its rows go back one step and try it alone, or end if they did."""
        rows = [row for row, epoch in zip(batch.rows, epochs, strict=True) if row.epoch == epoch]
        if is_out_of_memory(error) and len(rows) == len(batch.rows):
            batch.phase.shrink(batch.batch_layout)
        if rows:
            log.warning("a step of %d rows failed: %s", batch.batch_layout.size, error)
        for row in rows:
            if row.alone:
                self._end(row, generation_failed(error, f"in step {row.image_done + 1}"))
            else:
                row.rewind()

    def _end(self, row: Row, failure: GenerationFailed | None) -> None:
        self._seated.remove(row)
        row.end(failure)

    def _measure(self, sent: Sent) -> float:
        """Seconds that the device spent on this step: since the one before it had ended."""
        now = time.perf_counter()
        seconds = now - max(sent.sent_at, self._free_since)
        self._free_since = now
        sent.batch.phase.times.observe(sent.batch.batch_layout, seconds / sent.work)
        self._meter.step(sent.batch, seconds)
        return seconds

    def _count_wait(self) -> None:
        """Host time that the device may have spent idle: nothing before this step was running."""
        now = time.perf_counter()
        if all(sent.finite.is_ready() for sent in self._in_flight):  # type: ignore[attr-defined]
            self._meter.waited(now - max(self._free_since, self._at_work))
        self._at_work = now
