"""Noise of a smaller image: a larger image's noise, averaged down."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike, NDArray

from models.sampling.torch_rng import TorchGenerator


class ShrunkGenerator(TorchGenerator):
    """Generator that draws a larger image's noise and averages it down.

    Args:
        seed: seed of the larger image.
        larger: its height and width.
        smaller: height and width of the generated image, in the same unit.
    """

    def __init__(self, seed: int, larger: tuple[int, int], smaller: tuple[int, int]) -> None:
        super().__init__(seed)
        self._larger, self._smaller = larger, smaller

    def randn(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[np.float32]:
        """Draw noise of that shape, [channels, h, w], averaged from a larger image's."""
        channels, *grid = shape
        sides = zip(grid, self._larger, self._smaller, strict=True)
        drawn: NDArray[np.floating] = super().randn(
            (channels, *(h * of // to for h, of, to in sides)), dtype
        )
        for axis, length in enumerate(grid, 1):
            drawn = shrunk(drawn, axis, length)
        return drawn.astype(np.float32)


def shrunk(noise: NDArray[np.floating], axis: int, length: int) -> NDArray[np.float64]:
    """Average independent noise over parts of an axis, and restore its variance.

    The order of sums is fixed, on every processor.
    """
    size, means = noise.shape[axis], []
    for place in range(length):
        low, high = place * size, (place + 1) * size
        shares = {
            at: min(high, (at + 1) * length) - max(low, at * length)
            for at in range(low // length, -(-high // length))
        }
        norm = math.sqrt(sum(share**2 for share in shares.values()))
        terms = [noise.take(at, axis) * np.float64(share / norm) for at, share in shares.items()]
        means.append(sum(terms[1:], terms[0]))
    return np.stack(means, axis)
