"""Weights on text features, in the encoders' dtypes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.typing import DTypeLike

from models.text.emphasis import emphasized, scaled

HALVES = {"bfloat16": 2**-8, "float16": 2**-11}
"""Relative error of one rounding, by dtype."""


def features(dtype: DTypeLike) -> jax.Array:
    values = np.random.default_rng(1).normal(0.3, 1, (2, 7, 33))
    return jnp.asarray(values, jnp.float32).astype(dtype)


def weights() -> jax.Array:
    """Weights of two texts; all of the second text's are 1."""
    return jnp.ones((2, 7), jnp.float32).at[0, 2].set(1.5).at[0, 3].set(0.2)


@pytest.mark.parametrize("dtype", HALVES)
def test_only_the_result_is_rounded(dtype: str) -> None:
    hidden = features(dtype)
    output = jax.jit(emphasized)(hidden, weights())
    exact = np.asarray(hidden, np.float64)[0]
    weighted = exact * np.asarray(weights(), np.float64)[0, :, None]
    assert output.dtype == hidden.dtype
    expected = weighted * (exact.mean() / weighted.mean())
    np.testing.assert_allclose(np.asarray(output, np.float64)[0], expected, rtol=HALVES[dtype])


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_a_text_without_weights_keeps_its_bits(dtype: str) -> None:
    hidden = features(dtype)
    for weigh in (emphasized, scaled):
        output = jax.jit(weigh)(hidden, weights())
        assert np.asarray(output)[1].tobytes() == np.asarray(hidden)[1].tobytes()
        assert np.asarray(output)[0].tobytes() != np.asarray(hidden)[0].tobytes()


def test_features_near_the_end_of_float16_stay_finite() -> None:
    hidden = features("float16") * jnp.float16(8000)
    assert np.isfinite(np.asarray(emphasized(hidden, weights()))).all()


def test_scaling_keeps_the_other_tokens() -> None:
    hidden = features("float32")
    output = np.asarray(scaled(hidden, weights()))
    np.testing.assert_array_equal(output[0, 2], np.asarray(hidden)[0, 2] * np.float32(1.5))
    np.testing.assert_array_equal(output[0, 4:], np.asarray(hidden)[0, 4:])
    assert scaled(hidden, None) is hidden
