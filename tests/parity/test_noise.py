"""Atelier's noise equals torch's bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from models.sampling.torch_rng import TorchGenerator

SEEDS = [0, 1, 7, 42, 2**31, 2**32 + 5, 12345678901, 2**63 - 1, 2**63, 2**64 - 1, *range(100, 130)]
SHAPES = [(1, 4, 6, 6), (3,), (17,), (16,), (5, 7), (1, 16, 32, 48), (1,), (31,), (7, 3)]
"""Successive draws from one stream: scalars (with the spare of a pair), whole blocks,
remainders.
"""

HALVES = {torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16}


@pytest.mark.parametrize("seed", SEEDS)
def test_float32_is_bitwise_torchs(seed: int) -> None:
    reference, generator = torch.Generator("cpu").manual_seed(seed), TorchGenerator(seed)
    for shape in SHAPES:
        expected = torch.randn(shape, generator=reference).numpy()
        np.testing.assert_array_equal(generator.randn(shape), expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precisions_are_torchs_after_the_cast(dtype: torch.dtype) -> None:
    for seed in SEEDS:
        reference, generator = torch.Generator("cpu").manual_seed(seed), TorchGenerator(seed)
        for shape in SHAPES:
            expected = torch.randn(shape, generator=reference, dtype=dtype).float().numpy()
            values = generator.randn(shape, HALVES[dtype]).astype(HALVES[dtype]).astype(np.float32)
            np.testing.assert_array_equal(values, expected)


def test_another_seed_is_another_noise() -> None:
    assert not np.array_equal(TorchGenerator(1).randn((64,)), TorchGenerator(2).randn((64,)))
