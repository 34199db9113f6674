"""Positions of Qwen-Image's tokens: rows and columns centred at zero, text after the images.

Source: Wu et al. 2025 (Qwen-Image), section 3 (MSRoPE); diffusers' QwenEmbedRope with scale_rope.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.nn.layers.positions import grid_ids
from models.vae.references import Grid


def image_ids(*grids: Grid) -> np.ndarray:
    """Return RoPE positions of consecutive images: (index, row, column), [tokens, 3]."""
    return np.concatenate([_of_one(index, *grid) for index, grid in enumerate(grids)])


def text_ids(tokens: int, grids: Sequence[Grid]) -> np.ndarray:
    """Return positions of a text's tokens, [tokens, 3]: on the diagonal, outside every image."""
    first = max(side // 2 for grid in grids for side in grid)
    return np.repeat(first + np.arange(tokens)[:, None], 3, axis=1)


def _of_one(index: int, rows: int, columns: int) -> np.ndarray:
    middle = rows // 2 - rows, columns // 2 - columns
    return grid_ids(rows, columns, before=(index,), first=middle)
