"""Choice of the rows that share the next step, and of its compiled layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import PyTree
from workers.engine.row import Row
from workers.programs.bucket_programs import Phase
from workers.programs.conditioning import columns, place
from workers.programs.step_latency import BatchLayout


@dataclass(frozen=True)
class Batch:
    """Rows of one phase, for one of its programs; what is missing is padding."""

    phase: Phase
    rows: tuple[Row, ...]
    batch_layout: BatchLayout

    def run(self, weights: list[Any]) -> tuple[tuple[PyTree, ...], jax.Array]:
        """Send the rows' next step: their states after it, padding last, and finite [batch]."""
        padded = self._padded
        values = columns([row.next_step.values for row in padded])
        program = self.phase.programs[self.batch_layout].result()
        states = tuple(row.state for row in padded)
        return program(weights, states, values, *self._conditions(weights, padded))

    @property
    def work(self) -> float:
        """Work of the rows' next step, in the mean, as a multiple of the usual one."""
        return fmean(row.next_step.work for row in self._padded)

    @property
    def _padded(self) -> tuple[Row, ...]:
        return self.rows + self.rows[-1:] * (self.batch_layout.size - len(self.rows))

    def _conditions(self, weights: list[Any], rows: tuple[Row, ...]) -> tuple[Any, ...]:
        """Return the program's further arguments.

        The rows' conditions, and their next step's place there; nothing in a family that has none.
        """
        program = self.phase.conditions.result()
        if program is None:
            return ()
        trees = tuple(row.load_conditions(program, weights).tree for row in rows)
        return trees, np.array([place(row.sent) for row in rows], np.int32)


def next_batch(rows: Sequence[Row], resident: str | None = None) -> Batch | None:
    """The longest waiting row, with as many of its phase as pay; None: nothing can be sent.

    Rows that find no room are the longest waiting ones of the next turn: so all rows of a phase
    advance at one pace, and phases take turns.

    Args:
        resident: the swapped network that is on the device.
    """
    waiting = sorted(served_now(rows, resident), key=lambda row: row.ticket)
    if not waiting:
        return None
    first, phase = waiting[0], waiting[0].phase
    if first.alone:
        return Batch(phase, (first,), phase.smallest)
    company = [row for row in waiting if row.phase is phase and not row.alone]
    batch_layout = phase.times.best(len(company), phase.batch_layouts)
    return Batch(phase, tuple(company[: batch_layout.size]), batch_layout)


def served_now(rows: Sequence[Row], resident: str | None) -> list[Row]:
    """The rows whose next step can be sent, without the swaps of networks that can wait.

    A row that needs another network waits until every row that was seated before it began to wait
    has done its steps with the one on the device. Rows that came later step along until then, and
    do not prolong the wait. So rows that run together swap together, and nobody waits for ever.
    """
    sendable = [row for row in rows if row.sendable]
    away = [row for row in sendable if row.phase.expert not in (None, resident)]
    if not away:
        return sendable
    longest = min(away, key=lambda row: row.waits_since)
    is_held = resident is not None and any(
        row.seated < longest.waits_since and row.phase.expert == resident
        for row in rows
        if not (row.canceled or row.held or row.all_sent)
    )
    served = resident if is_held else longest.phase.expert
    return [row for row in sendable if row.phase.expert in (None, served)]
