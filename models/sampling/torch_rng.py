"""Random normals of torch's CPU generator in NumPy: a seed gives the same image as in diffusers.

Source: the algorithm of at::normal_ on CPU (PyTorch, aten/src/ATen/native/cpu/
DistributionTemplates.h and core/DistributionsHelper.h): MT19937, Box-Muller by blocks of 16.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike, NDArray

from models.sampling import float32_math

_BLOCK = 16
_HALF = _BLOCK // 2


class TorchGenerator:
    """Equivalent of `torch.Generator("cpu").manual_seed(seed)`: one stream of random numbers."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed & 0xFFFF_FFFF)
        self._spare: float | None = None

    def randn(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[np.float32]:
        """Return `torch.randn(shape, generator=self, dtype=dtype)`, with its values as float32.

        Args:
            dtype: dtype of the torch tensor. It only determines how many uniforms are drawn for the
                values after the last whole block of 16; the caller casts.
        """
        count = math.prod(shape)
        if count < _BLOCK:
            values = np.array([self._scalar() for _ in range(count)], np.float32)
        else:
            values = self._blocks(count, half=np.dtype(dtype).itemsize == 2)
        return values.reshape(shape)

    def _uint32(self, count: int) -> NDArray[np.uint32]:
        return self._twister.randint(0, 2**32, size=count, dtype=np.uint32)

    def _uniform(self, count: int) -> NDArray[np.float32]:
        """Draw uniform floats of 24 bits, in [0, 1)."""
        return (self._uint32(count) & np.uint32(0xFF_FFFF)).astype(np.float32) * np.float32(2**-24)

    def _blocks(self, count: int, *, half: bool) -> NDArray[np.float32]:
        """Draw normals in blocks of 16, as torch; a remainder's block overwrites the last 16.

        Before that, float32 draws uniforms for the remainder too; half precisions do not.
        """
        full_count = count - count % _BLOCK
        values = np.empty(count, np.float32)
        values[:full_count] = _box_muller(self._uniform(full_count))
        if full_count != count:
            self._uniform(0 if half else count - full_count)
            values[-_BLOCK:] = _box_muller(self._uniform(_BLOCK))
        return values

    def _scalar(self) -> float:
        """Draw a float64 normal by Box-Muller; every second call returns the other half."""
        if self._spare is not None:
            value, self._spare = self._spare, None
            return value
        turn, radius_source = self._double(), self._double()
        radius = math.sqrt(-2.0 * math.log1p(-radius_source))
        self._spare = radius * math.sin(2.0 * math.pi * turn)
        return radius * math.cos(2.0 * math.pi * turn)

    def _double(self) -> float:
        """Draw a uniform float64 of 53 bits, in [0, 1), the high word first."""
        high, low = (int(word) for word in self._uint32(2))
        return ((high << 32 | low) & (2**53 - 1)) * 2.0**-53


def _box_muller(uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert blocks of 16 uniforms to normals: eight radii, eight angles; cosines, then sines."""
    blocks = uniforms.reshape(-1, 2, _HALF)
    radius = np.sqrt(np.float32(-2) * float32_math.log(np.float32(1) - blocks[:, 0]))
    sine, cosine = float32_math.sincos(np.float32(2 * math.pi) * blocks[:, 1])
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(-1)
