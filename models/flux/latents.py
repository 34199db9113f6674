"""Positions of Flux's packed latents."""

from __future__ import annotations

import numpy as np

from models.nn.layers.positions import grid_ids


def image_ids(h: int, w: int, index: int = 0) -> np.ndarray:
    """Return positions of a [h, w] grid's packed latents: (index, row, column), [tokens, 3]."""
    return grid_ids(h // 2, w // 2, before=(index,))
