"""Batch scheduler: choice of the rows that share the next step, and of its compiled layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import jax
import numpy as np

from models.interface.pipeline import PyTree
from workers.engine.row import Row
from workers.programs.bucket_programs import StepKind
from workers.programs.precomputed_modulations import columns, index_in_group
from workers.programs.step_latency import BatchLayout


@dataclass(frozen=True)
class Batch:
    """Rows of one step kind, and the compiled layout that runs them, padded to its size."""

    step_kind: StepKind
    rows: tuple[Row, ...]
    batch_layout: BatchLayout

    def run(self, weights: list[Any]) -> tuple[tuple[PyTree, ...], jax.Array]:
        """Launch the rows' next step; return their states, padding last, and digests [batch]."""
        padded = self._padded
        values = columns([row.next_step.values for row in padded])
        program = self.step_kind.programs[self.batch_layout].result()
        states = tuple(row.state for row in padded)
        output: tuple[tuple[PyTree, ...], jax.Array] = program(
            weights, states, values, *self._modulation_arguments(weights, padded)
        )
        return output

    @property
    def work(self) -> float:
        """Mean cost of the rows' next step, as a multiple of the usual step."""
        return fmean(row.next_step.work for row in self._padded)

    @property
    def _padded(self) -> tuple[Row, ...]:
        return self.rows + self.rows[-1:] * (self.batch_layout.size - len(self.rows))

    def _modulation_arguments(self, weights: list[Any], rows: tuple[Row, ...]) -> tuple[Any, ...]:
        """Return the program's modulation arguments: each row's tree, and its next step's index.

        Empty for families without precomputed modulations.
        """
        program = self.step_kind.modulations.result()
        if program is None:
            return ()
        trees = tuple(row.load_modulations(program, weights).tree for row in rows)
        return trees, np.array([index_in_group(row.sent) for row in rows], np.int32)


def next_batch(rows: Sequence[Row], resident: str | None = None) -> Batch | None:
    """Choose the batch of the next step: the longest waiting row, and rows of the same step kind.

    Rows that do not fit wait longest, so they are chosen next. All rows of a step kind therefore
    advance at one pace, and step kinds alternate. None: no step can be sent.

    Args:
        resident: the swapped network that is on the device.
    """
    waiting = sorted(served_now(rows, resident), key=lambda row: row.ticket)
    if not waiting:
        return None
    first, step_kind = waiting[0], waiting[0].step_kind
    if first.retries_separately:
        return Batch(step_kind, (first,), step_kind.smallest)
    candidates = [
        row for row in waiting if row.step_kind is step_kind and not row.retries_separately
    ]
    batch_layout = step_kind.times.best(len(candidates), step_kind.batch_layouts)
    return Batch(step_kind, tuple(candidates[: batch_layout.size]), batch_layout)


def served_now(rows: Sequence[Row], resident: str | None) -> list[Row]:
    """Return the rows whose next step can be sent without swapping networks.

    A row may need a network that is not on the device. It waits until all rows that got a slot
    before it began to wait have finished their steps with the resident network. Rows that came
    later run along until then, but do not prolong the wait. So rows that run together swap
    together, and no row starves.
    """
    sendable = [row for row in rows if row.sendable]
    away = [row for row in sendable if row.step_kind.expert not in (None, resident)]
    if not away:
        return sendable
    longest = min(away, key=lambda row: row.waits_since)
    is_held = resident is not None and any(
        row.slot_ticket < longest.waits_since and row.step_kind.expert == resident
        for row in rows
        if not (row.canceled or row.paused or row.all_sent)
    )
    served = resident if is_held else longest.step_kind.expert
    return [row for row in sendable if row.step_kind.expert in (None, served)]
