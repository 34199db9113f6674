"""Positions of Flux's packed latents."""

from __future__ import annotations

import numpy as np


def image_ids(h: int, w: int, index: int = 0) -> np.ndarray:
    """Positions of the packed latents of a [h, w] grid: (index, row, column), [tokens, 3]."""
    rows, columns = np.mgrid[: h // 2, : w // 2]
    return np.stack([np.full_like(rows, index), rows, columns], axis=-1).reshape(-1, 3)
