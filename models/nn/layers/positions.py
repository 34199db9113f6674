"""Positions of tokens along several axes, for RoPE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def grid_ids(
    rows: int,
    columns: int,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    first: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """Return positions of an image's tokens, [rows · columns, axes], row by row.

    Args:
        before, after: constant positions before row and column, and after them.
        first: row and column of the first token.
    """
    places = np.moveaxis(np.mgrid[:rows, :columns], 0, -1).reshape(-1, 2) + first
    in_front, at_end = (
        np.broadcast_to(constants, (len(places), len(constants))) for constants in (before, after)
    )
    return np.concatenate([in_front, places, at_end], axis=-1).astype(int)
