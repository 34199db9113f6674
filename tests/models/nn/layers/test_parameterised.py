"""Linear layers with a separate axis of heads equal those without."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.nn.layers.parameterised import Linear, from_heads, linear, to_heads

HEADS, DIM, WIDTH = 3, 4, 5
CLOSE = 1e-6
"""Tolerance of values of about 1: the last digits of float32, sums in another order."""


@pytest.mark.parametrize("use_bias", [True, False])
def test_heads_are_the_layers_features(use_bias: bool) -> None:
    layer = _linear(WIDTH, HEADS * DIM, use_bias)
    x = jax.random.normal(jax.random.key(1), (2, 7, WIDTH))
    np.testing.assert_allclose(
        to_heads(layer, x, HEADS), layer(x).reshape(2, 7, HEADS, DIM), atol=CLOSE
    )


@pytest.mark.parametrize("use_bias", [True, False])
def test_head_outputs_are_combined(use_bias: bool) -> None:
    layer = _linear(HEADS * DIM, WIDTH, use_bias)
    x = jax.random.normal(jax.random.key(1), (2, 7, HEADS, DIM))
    np.testing.assert_allclose(
        from_heads(layer, x), layer(x.reshape(2, 7, HEADS * DIM)), atol=CLOSE
    )


def test_activations_keep_their_dtype() -> None:
    x = jnp.ones((1, 2, WIDTH), jnp.bfloat16)
    assert to_heads(_linear(WIDTH, HEADS * DIM, True), x, HEADS).dtype == jnp.bfloat16


def _linear(inputs: int, outputs: int, use_bias: bool) -> Linear:
    layer = linear(inputs, outputs, ("embed", "heads"), rngs=nnx.Rngs(0), use_bias=use_bias)
    if layer.bias is not None:
        layer.bias[...] = jnp.arange(outputs) / outputs
    return layer
