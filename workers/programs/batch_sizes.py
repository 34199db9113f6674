"""Batch sizes that the steps of a pool are compiled for.

And so whether an image can depend on its company: a program of another size, or of another layout,
sums in another order.
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
    """Batch sizes of all steps of one pool."""

    mode: Literal["exact", "fast"]
    sizes: tuple[int, ...]
    """Ascending."""
    elastic: bool = False
    """Whether images are also stepped side by side, each by a part of the slice."""

    @property
    def is_exact(self) -> bool:
        """Return whether pixels must not depend on the batch."""
        return self.mode == "exact"

    @property
    def label(self) -> str:
        """Return all that decides the bytes of an image.

        `exact by 2`; or `fast`, where its company does as well.
        """
        return f"exact by {self.sizes[0]}" if self.is_exact else "fast"


def exact(rows: int = 1) -> BatchSizes:
    """Build sizes of one program a step, padded to that many rows: no bit depends on the rest."""
    return BatchSizes("exact", (rows,))


def fast(slots: int, sizes: tuple[int, ...] = (), elastic: bool = True) -> BatchSizes:
    """Build sizes of one row and several; measured times choose.

    Args:
        sizes: empty: 1, 2, 4, … up to `slots`.
    """
    return BatchSizes("fast", tuple(sorted({1, *(sizes or powers_of_two(slots))})), elastic)


def of_settings(pool: PoolSettings, model: ModelSettings, layout: Layout, slots: int) -> BatchSizes:
    """Return the batch sizes as the settings have them.

    Never as something was measured: pools with equal settings, on equal slices, run equal programs.
    """
    if model.batching == "fast":
        return fast(slots, pool.batch_sizes, pool.elastic)
    return exact(least(model, layout))


def least(model: ModelSettings, layout: Layout) -> int:
    """Rows of the smallest launch."""
    return 1 if model.batching == "fast" else model.exact_rows or side_by_side(layout)


def most(model: ModelSettings, layout: Layout, slots: int) -> int:
    """Rows of the largest launch, where `slots` are taken."""
    return slots if model.batching == "fast" else least(model, layout)


def side_by_side(layout: Layout) -> int:
    """Rows that the layout steps at once, each on devices of its own."""
    axes = set(layout.table["batch"]) - set(layout.table["prompts"])
    return math.prod(layout.mesh.shape[axis] for axis in axes)


def powers_of_two(slots: int) -> tuple[int, ...]:
    """1, 2, 4, … and `slots` itself."""
    return (*(2**i for i in range((slots - 1).bit_length())), slots)
