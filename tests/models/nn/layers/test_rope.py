"""RoPE: rotation of pairs by their angles, with each method that a chip may use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import DTypeLike

from models.nn.layers.rope import (
    RopeTable,
    apply_rope,
    grid_rope_table,
    partners_by_order,
    partners_by_product,
    rope_table,
)

AXES_DIMS = (4, 6)
TOKENS, HEADS, DIM = 12, 3, sum(AXES_DIMS)
GRID = (3, 4)


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.stack(np.meshgrid(*map(np.arange, GRID), indexing="ij"), -1).reshape(-1, 2)


@pytest.fixture(scope="module")
def x() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, TOKENS, HEADS, DIM))


def test_pairs_turn_as_complex_numbers_do(ids: np.ndarray, x: jax.Array) -> None:
    frequencies = [10_000.0 ** -(np.arange(0, dim, 2) / dim) for dim in AXES_DIMS]
    angles = np.concatenate([np.outer(ids[:, i], f) for i, f in enumerate(frequencies)], -1)
    pairs = np.asarray(x, np.float64).reshape(2, TOKENS, HEADS, -1, 2)
    rotated = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[:, None]
    expected = np.stack([rotated.real, rotated.imag], -1).reshape(x.shape)
    # Rounding of float32: sums of two products of numbers below 4.
    np.testing.assert_allclose(apply_rope(x, rope_table(ids, AXES_DIMS)), expected, atol=1e-6)


def test_a_grid_has_its_positions_angles(ids: np.ndarray) -> None:
    for table, reference in zip(
        rope_table(ids, AXES_DIMS), grid_rope_table(GRID, AXES_DIMS), strict=True
    ):
        np.testing.assert_array_equal(table, reference)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16], ids=str)
def test_a_product_finds_the_same_partners(dtype: DTypeLike, x: jax.Array) -> None:
    """A product with a permutation, which TPUs use, gives exactly the partners that indexing
    gives."""
    x = x.astype(dtype)
    partners = partners_by_product(x)
    assert partners.dtype == jnp.float32
    np.testing.assert_array_equal(partners, partners_by_order(x))
    np.testing.assert_array_equal(partners[..., 0], x[..., 1].astype(jnp.float32))


def test_only_tpus_use_a_matrix_product(ids: np.ndarray, x: jax.Array) -> None:
    table = RopeTable(*map(jnp.asarray, rope_table(ids, AXES_DIMS)))
    traced = jax.jit(apply_rope).trace(x, table)
    assert "dot_general" in traced.lower(lowering_platforms=("tpu",)).as_text()
    for platform in ("cpu", "cuda"):
        assert "dot_general" not in traced.lower(lowering_platforms=(platform,)).as_text()
