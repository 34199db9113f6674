"""Positions of tokens: numbers along several axes, which RoPE turns by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def grid_ids(
    rows: int,
    columns: int,
    before: Sequence[int] = (),
    behind: Sequence[int] = (),
    first: tuple[int, int] = (0, 0),
) -> np.ndarray:
    """Return positions of an image's tokens, [rows · columns, axes], row by row.

    Args:
        before, behind: what all of them have in front of row and column, and behind them.
        first: row and column of the first token.
    """
    places = np.moveaxis(np.mgrid[:rows, :columns], 0, -1).reshape(-1, 2) + first
    in_front, at_end = (
        np.broadcast_to(alike, (len(places), len(alike))) for alike in (before, behind)
    )
    return np.concatenate([in_front, places, at_end], axis=-1).astype(int)
