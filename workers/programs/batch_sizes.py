"""Batch sizes that a worker's steps are compiled for.

They decide whether an image may depend on the rest of its batch: programs of another size or layout
sum in another order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from models.parallel.axis_rules import Layout
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings


@dataclass(frozen=True)
class BatchSizes:
    """Batch sizes that one worker's denoising steps are compiled for."""

    mode: Literal["exact", "fast"]
    sizes: tuple[int, ...]
    """Numbers of rows that steps are compiled for, ascending."""
    elastic: bool = False
    """Whether rows may also run in parallel, each on a part of the slice."""

    @property
    def is_exact(self) -> bool:
        """Return whether an image's pixels must not depend on its batch."""
        return self.mode == "exact"

    @property
    def label(self) -> str:
        """Return the part of the batching that determines an image's bytes.

        `exact by 2`; or `fast`, where the batch also influences them.
        """
        return f"exact by {self.sizes[0]}" if self.is_exact else "fast"


def exact(rows: int = 1) -> BatchSizes:
    """Build exact batching: one program per step, padded to `rows`; no bit depends on others."""
    return BatchSizes("exact", (rows,))


def fast(slots: int, sizes: tuple[int, ...] = (), elastic: bool = True) -> BatchSizes:
    """Build fast batching: one row and several sizes, chosen by measured times.

    Args:
        sizes: batch sizes; empty: 1, 2, 4, … up to `slots`.
    """
    return BatchSizes("fast", tuple(sorted({1, *(sizes or powers_of_two(slots))})), elastic)


def of_settings(pool: PoolSettings, model: ModelSettings, layout: Layout, slots: int) -> BatchSizes:
    """Return the batch sizes that the settings define.

    They never depend on measurements: workers with equal settings, on equal slices, run equal
    programs.
    """
    if model.batching == "fast":
        return fast(slots, pool.batch_sizes, pool.elastic)
    return exact(least(model, layout))


def least(model: ModelSettings, layout: Layout) -> int:
    """Return the number of rows of the smallest batch that is launched."""
    return 1 if model.batching == "fast" else model.exact_rows or side_by_side(layout)


def most(model: ModelSettings, layout: Layout, slots: int) -> int:
    """Return the number of rows of the largest batch, with all `slots` in use."""
    return slots if model.batching == "fast" else least(model, layout)


def side_by_side(layout: Layout) -> int:
    """Return the number of rows that the layout steps in parallel, each on its own devices."""
    axes = set(layout.table["batch"]) - set(layout.table["prompts"])
    return math.prod(layout.mesh.shape[axis] for axis in axes)


def powers_of_two(slots: int) -> tuple[int, ...]:
    """Return powers of two below `slots`, and `slots` itself."""
    return (*(2**i for i in range((slots - 1).bit_length())), slots)
