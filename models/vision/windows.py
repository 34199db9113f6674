"""Attention windows over an image's patches, padded at the right and bottom edges.

Patches are ordered by square, then row by row. A square contains the patches that are merged into
one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True)
class Windows:
    """Assignment of squares of patches to attention windows, computed on the host."""

    index: Int[np.ndarray, "windows squares"]
    """Square at each position; -1: padding."""
    grid: tuple[int, int]
    """Rows and columns of squares."""
    merge: int
    """Side of a square, in patches."""

    @classmethod
    def of(cls, grid: tuple[int, int], side: int, merge: int) -> Windows:
        """Return the attention windows of a patch grid.

        Args:
            side: of a window, in squares.
        """
        rows, columns = grid
        numbers = np.arange(rows * columns).reshape(grid)
        padded = np.pad(numbers, ((0, -rows % side), (0, -columns % side)), constant_values=-1)
        high, wide = (size // side for size in padded.shape)
        index = padded.reshape(high, side, wide, side).transpose(0, 2, 1, 3)
        return cls(index.reshape(-1, side * side), grid, merge)

    @property
    def filled(self) -> Bool[np.ndarray, "windows patches"]:
        """Mask of the windows' entries: true for patches, false for padding."""
        return np.repeat(self.index >= 0, self.merge**2, axis=1)

    @property
    def places(self) -> Int[np.ndarray, "patches 2"]:
        """Row and column of each patch, in the order of the windows."""
        rows, columns = self.grid
        m = self.merge
        both = np.mgrid[: rows * m, : columns * m].reshape(2, rows, m, columns, m)
        return both.transpose(1, 3, 2, 4, 0).reshape(-1, 2)

    def cut(self, patches: Any) -> Any:
        """Group patches by window: [patches, …] → [windows, patches, …].

        NumPy arrays, such as `places`, have their last axis first: [2, windows, patches].
        """
        if isinstance(patches, np.ndarray):
            return np.moveaxis(self._cut(np, patches), -1, 0)
        return self._cut(jnp, patches)

    def _cut(self, numpy: ModuleType, patches: Any) -> Any:
        rest = patches.shape[1:]
        squares = patches.reshape(-1, self.merge**2, *rest)
        taken = numpy.take(squares, numpy.maximum(self.index, 0), axis=0)
        return taken.reshape(len(self.index), -1, *rest)

    def joined(self, x: jax.Array) -> jax.Array:
        """Undo `cut`: [windows, patches, width] → [squares, patches of a square, width]."""
        flat = x.reshape(self.index.size, self.merge**2, -1)
        order = np.argsort(self.index.reshape(-1), kind="stable")
        return flat[order[(self.index < 0).sum() :]]
