"""Noise of a reduced image, derived from the noise of the full-size image."""

from __future__ import annotations

import numpy as np
import pytest

from models.sampling.shrunk_noise import ShrunkGenerator
from models.sampling.torch_rng import TorchGenerator

CLOSE = 1e-6
"""Tolerance for rounding of float32."""


def test_halves_are_means_of_blocks_with_their_variance_restored() -> None:
    full = TorchGenerator(7).randn((3, 8, 12))
    small = ShrunkGenerator(7, (64, 96), (32, 48)).randn((3, 4, 6))
    blocks = full.reshape(3, 4, 2, 6, 2).mean(axis=(2, 4))
    assert small.dtype == np.float32
    assert np.allclose(small, 2 * blocks, atol=CLOSE)


def test_every_noise_is_that_of_the_larger_image() -> None:
    """Every noise is derived from that of the larger image, also at the second draw, when both
    generators have drawn equally many numbers."""
    full, shrunk = TorchGenerator(7), ShrunkGenerator(7, (64, 96), (32, 48))
    for _ in range(2):
        noise = [full.randn((3, 8, 12)), shrunk.randn((3, 4, 6))]
    assert np.allclose(noise[1], 2 * noise[0].reshape(3, 4, 2, 6, 2).mean(axis=(2, 4)), atol=CLOSE)


@pytest.mark.parametrize("smaller", [(96, 96), (80, 64), (48, 32), (8, 8)])
def test_shrunk_noise_has_unit_variance_at_any_scale(smaller: tuple[int, int]) -> None:
    h, w = (side // 8 for side in smaller)
    samples = [ShrunkGenerator(seed, (96, 96), smaller).randn((16, h, w)) for seed in range(64)]
    count = 64 * 16 * h * w
    assert np.mean(samples) == pytest.approx(0, abs=5 / count**0.5)
    assert np.var(samples) == pytest.approx(1, abs=5 * (2 / count) ** 0.5)


def test_noise_of_the_same_size_is_unchanged() -> None:
    noise = ShrunkGenerator(7, (64, 96), (64, 96)).randn((3, 8, 12))
    assert np.array_equal(noise, TorchGenerator(7).randn((3, 8, 12)))
