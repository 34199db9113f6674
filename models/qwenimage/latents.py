"""Positions of Qwen-Image's tokens: rows and columns centred at zero, text after the images.

Source: Wu et al. 2025 (Qwen-Image), section 3 (MSRoPE); diffusers' QwenEmbedRope with scale_rope.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from models.nn.layers.positions import grid_ids
from models.vae.references import Grid


def image_ids(*grids: Grid) -> np.ndarray:
    """Return RoPE positions of consecutive images: (index, row, column), [tokens, 3]."""
    return np.concatenate([_of_one(index, *grid) for index, grid in enumerate(grids)])


def text_ids(tokens: int, grids: Sequence[Grid]) -> np.ndarray:
    """Return positions of a text's tokens, [tokens, 3]: on the diagonal, outside every image."""
    first = max(side // 2 for grid in grids for side in grid)
    return np.repeat(first + np.arange(tokens)[:, None], 3, axis=1)


def first_of_rows(extents: Int[Array, "batch 2"]) -> Int[Array, "batch 2"]:
    """Return row and column of the first token of images of these sizes."""
    return extents // 2 - extents


def text_ids_of_rows(
    tokens: int, extents: Int[Array, "batch 2"]
) -> Int[Array, "batch text_tokens 3"]:
    """Return `text_ids` of rows whose images have these sizes."""
    first = (extents // 2).max(axis=1)
    return jnp.repeat((first[:, None] + jnp.arange(tokens))[..., None], 3, axis=2)


def _of_one(index: int, rows: int, columns: int) -> np.ndarray:
    middle = rows // 2 - rows, columns // 2 - columns
    return grid_ids(rows, columns, before=(index,), first=middle)
