"""Step loop: the thread that keeps the device busy with denoising steps.

It only chooses a batch, sends its step, and checks the digests of the previous step. All other work
on an image runs in other threads.
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
    EngineFailed,
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
"""Steps sent ahead of the step being checked: enough to keep the device busy, and few enough that a
canceled row starts at most one more step."""


@dataclass(frozen=True)
class StepInFlight:
    """Batch whose step is in flight on the device."""

    batch: Batch
    epochs: tuple[int, ...]
    """Epochs of its rows when it was sent."""
    states: tuple[PyTree, ...]
    digests: jax.Array
    """Digest of each row's latents, 0 if not finite: uint32 [batch]."""
    sent_at: float
    work: float
    """Mean work of its rows' step, as a multiple of the usual step."""


class StepLoop:
    """Step scheduler thread. Rows enter with `submit`, from any thread, and leave with `on_end`.

    Args:
        slots: maximum number of rows stepped together; further rows wait in order.
        fetch: copies an array to the host once it is computed.
        on_failure: called in the loop's thread with an error that has ended the loop itself.
    """

    def __init__(
        self,
        meter: StepMetrics,
        weights: Weights,
        slots: int,
        fetch: Callable[[jax.Array], np.ndarray],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._meter = meter
        self._weights = weights
        self._slots = slots
        self._fetch = fetch
        self._on_failure = on_failure
        self._waiting: deque[Row] = deque()
        self._active: list[Row] = []
        self._in_flight: deque[StepInFlight] = deque()
        self._tickets = itertools.count(1)
        self._free_since = 0.0
        """End time of the last step that was checked."""
        self._at_work = 0.0
        """Time at which the loop last woke up or sent a step."""
        self._wake = threading.Event()
        self._on_empty: Callable[[], Any] | None = None
        self.settled = 0
        """Number of batch steps that have ended."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="step_loop", daemon=True)
        meter.has(slots)

    def start(self) -> None:
        """Start the step loop's thread."""
        self._thread.start()

    @property
    def load(self) -> int:
        """Number of rows in the loop, with and without a slot."""
        return len(self._waiting) + len(self._active)

    def when_empty(self, on_empty: Callable[[], Any]) -> None:
        """Call `on_empty` once, in the loop's thread, when no row and no step in flight remains."""
        self._on_empty = on_empty
        self._wake.set()

    def submit(self, row: Row) -> None:
        """Add a row, which may join the next batch."""
        self._waiting.append(row)
        self._wake.set()

    def pause(self, row: Row, on_idle: Callable[[], Any]) -> None:
        """Pause a row: send no further step of it.

        Args:
            on_idle: called once, in the loop's thread, when no step of the row is in flight; never
                called for a row that has left the loop.
        """
        row.on_idle, row.paused = on_idle, True
        self._wake.set()

    def resume(self, row: Row) -> None:
        """Resume a row paused by `pause`."""
        row.on_idle, row.paused = None, False
        self._wake.set()

    def close(self, wait_s: float | None = None) -> None:
        """Stop after the step in flight; unfinished rows receive no callback.

        Args:
            wait_s: seconds to wait for the thread; None: without limit.
        """
        self._closing = True
        self._wake.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._run_once()
        except Exception as error:
            log.exception("the step loop failed")
            self._on_failure(error)

    def _run_once(self) -> None:
        """Send one batch's step if possible, then check an earlier one."""
        self._wake.clear()
        self._assign_slots()
        batch = next_batch(self._active, self._weights.resident)
        if batch is not None and self._in_flight and not self._is_present(batch):
            batch = None  # a swap frees what the steps in flight still use
        if batch is not None:
            self._send(batch)
        if self._in_flight and (batch is None or len(self._in_flight) > AHEAD):
            self._settle(self._in_flight.popleft())
        elif batch is None:
            if (on_empty := self._on_empty) and not self.load:
                self._on_empty = None
                on_empty()
            with TraceAnnotation(NO_WORK):
                self._wake.wait()
            self._at_work = time.perf_counter()

    def _assign_slots(self) -> None:
        """Free the slots of canceled rows; assign free slots to waiting rows."""
        for row in [row for row in self._active if row.canceled]:
            self._end(row, None)
        stepping = sum(not row.all_sent for row in self._active)
        while self._waiting and stepping < self._slots:
            row = self._waiting.popleft()
            if not row.canceled:
                row.slot_ticket = next(self._tickets)
                self._active.append(row)
                stepping += 1
        self._meter.set_busy_slots(stepping)
        for row in (*self._active, *self._waiting):
            row.notify_if_idle()

    def _send(self, batch: Batch) -> None:
        epochs = tuple(row.epoch for row in batch.rows)
        try:
            weights = self._load_weights(batch)
            sent_at, work = time.perf_counter(), batch.work
            states, digests = batch.run(weights)
        except EngineFailed:
            raise
        except Exception as error:
            self._settle_all()  # in order: this error may only repeat an earlier step's
            self._fail(batch, epochs, error)
            return
        self._count_wait()
        for row, state in zip(batch.rows, states, strict=False):
            row.send(state, next(self._tickets))
        self._in_flight.append(StepInFlight(batch, epochs, states, digests, sent_at, work))

    def _is_present(self, batch: Batch) -> bool:
        """Return whether the network that the batch's step needs is on the device."""
        return batch.step_kind.expert in (None, self._weights.resident)

    def _load_weights(self, batch: Batch) -> list[Any]:
        """Return the weights of a batch's step, swapping networks if needed."""
        is_present = self._is_present(batch)
        weights = self._weights.load_expert(batch.step_kind.expert)
        if not is_present:
            self._at_work = time.perf_counter()
        return weights

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle(self._in_flight.popleft())

    def _settle(self, sent: StepInFlight) -> None:
        """Wait for a batch's step to end, and process its results."""
        try:
            with TraceAnnotation(STEP):
                digests = self._fetch(sent.digests)
        except EngineFailed:
            raise
        except Exception as error:
            self._fail(sent.batch, sent.epochs, error)
            return
        share = self._measure(sent) / len(sent.batch.rows)
        self.settled += 1
        results = zip(sent.batch.rows, sent.epochs, sent.states, digests, strict=False)
        for row, epoch, state, digest in results:
            if row.epoch == epoch:
                self._advance(row, state, int(digest), share)

    def _advance(self, row: Row, state: PyTree, digest: int, device_seconds: float) -> None:
        if not digest:
            self._end(row, non_finite(row.image_done + 1, row.image_steps))
            return
        row.advance(state, device_seconds, digest)
        row.on_step(row)
        if row.is_done:
            self._end(row, None)

    def _fail(self, batch: Batch, epochs: tuple[int, ...], error: Exception) -> None:
        """Handle the failed step of a batch: rows retry alone; rows that were alone end."""
        rows = [row for row, epoch in zip(batch.rows, epochs, strict=True) if row.epoch == epoch]
        if is_out_of_memory(error) and len(rows) == len(batch.rows):
            batch.step_kind.shrink(batch.batch_layout)
        if rows:
            log.warning("a step of %d rows failed: %s", batch.batch_layout.size, error)
        for row in rows:
            if row.retries_separately:
                self._end(row, generation_failed(error, f"in step {row.image_done + 1}"))
            else:
                row.rewind()

    def _end(self, row: Row, failure: GenerationFailed | None) -> None:
        self._active.remove(row)
        row.end(failure)

    def _measure(self, sent: StepInFlight) -> float:
        """Return the seconds that the device spent on a batch's step, from the previous end."""
        now = time.perf_counter()
        seconds = now - max(sent.sent_at, self._free_since)
        self._free_since = now
        sent.batch.step_kind.times.observe(sent.batch.batch_layout, seconds / sent.work)
        self._meter.step(sent.batch, seconds)
        return seconds

    def _count_wait(self) -> None:
        """Record host time in which the device may have idled, as no earlier step was running."""
        now = time.perf_counter()
        if all(sent.digests.is_ready() for sent in self._in_flight):  # type: ignore[attr-defined]
            self._meter.waited(now - max(self._free_since, self._at_work))
        self._at_work = now
