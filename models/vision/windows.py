"""Windows of an image's patches, those at the right and bottom edge filled up to be equal.

Patches come square by square, each square being what is merged to one token, row by row.
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
    """Places of squares in windows, on the host: they are part of a program's shape."""

    index: Int[np.ndarray, "windows squares"]
    """Square at each place; -1: none, the window is filled up."""
    grid: tuple[int, int]
    """Rows and columns of squares."""
    merge: int
    """Side of a square, in patches."""

    @classmethod
    def of(cls, grid: tuple[int, int], side: int, merge: int) -> Windows:
        """Return the windows of a grid.

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
        """True at each place that has a patch."""
        return np.repeat(self.index >= 0, self.merge**2, axis=1)

    @property
    def places(self) -> Int[np.ndarray, "patches 2"]:
        """Row and column of each patch."""
        rows, columns = self.grid
        m = self.merge
        both = np.mgrid[: rows * m, : columns * m].reshape(2, rows, m, columns, m)
        return both.transpose(1, 3, 2, 4, 0).reshape(-1, 2)

    def cut(self, patches: Any) -> Any:
        """[patches, …] → [windows, patches, …]; of places [2, windows, patches]."""
        if isinstance(patches, np.ndarray):
            return np.moveaxis(self._cut(np, patches), -1, 0)
        return self._cut(jnp, patches)

    def _cut(self, numpy: ModuleType, patches: Any) -> Any:
        rest = patches.shape[1:]
        squares = patches.reshape(-1, self.merge**2, *rest)
        taken = numpy.take(squares, numpy.maximum(self.index, 0), axis=0)
        return taken.reshape(len(self.index), -1, *rest)

    def joined(self, x: jax.Array) -> jax.Array:
        """[windows, patches, width] → [squares, patches of a square, width], in order."""
        flat = x.reshape(self.index.size, self.merge**2, -1)
        order = np.argsort(self.index.reshape(-1), kind="stable")
        return flat[order[(self.index < 0).sum() :]]
