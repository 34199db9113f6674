"""Which rows share the next step, and in a batch of which compiled size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from models.pipeline import PyTree
from workers.row import Row
from workers.shape import Phase


@dataclass(frozen=True)
class Batch:
    """Rows of one phase, for its program of `size` rows; what is missing is padding."""

    phase: Phase
    rows: tuple[Row, ...]
    size: int

    def run(self, weights: list[jax.Array]) -> tuple[tuple[PyTree, ...], jax.Array]:
        """Send the rows' next step: their states after it, padding last, and finite [size]."""
        padded = self.rows + self.rows[-1:] * (self.size - len(self.rows))
        steps = [row.next_step.scalars for row in padded]
        scalars = {name: np.asarray([s[name] for s in steps], np.float32) for name in steps[0]}
        program = self.phase.programs[self.size].result()
        return program(weights, tuple(row.state for row in padded), scalars)


def next_batch(rows: Sequence[Row]) -> Batch | None:
    """The longest waiting row, with as many of its phase as pay; None: nothing can be sent.

    Rows that find no room are the longest waiting ones of the next turn: so all rows of a phase
    advance at one pace, and phases take turns.
    """
    waiting = sorted((row for row in rows if row.sendable), key=lambda row: row.ticket)
    if not waiting:
        return None
    first, phase = waiting[0], waiting[0].phase
    if first.alone:
        return Batch(phase, (first,), phase.smallest)
    company = [row for row in waiting if row.phase is phase and not row.alone]
    size = phase.times.best(len(company), phase.sizes)
    return Batch(phase, tuple(company[:size]), size)
