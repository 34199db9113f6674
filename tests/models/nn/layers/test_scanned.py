"""Stacked layers run in order, with a loop or unrolled."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.nn.layers.parameterised import linear
from models.nn.layers.scanned import scan, stack
from models.parallel.trace_options import TraceOptions


def test_without_a_loop_the_numbers_are_the_same() -> None:
    layers = stack(partial(linear, 3, 3, (None, None)), 4, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 3))

    def run(x: jax.Array) -> jax.Array:
        return scan(layers, x, lambda layer, x: jnp.tanh(layer(x)))[0]

    by_hand = x
    for kernel, bias in zip(layers.kernel[...], layers.bias[...], strict=True):
        by_hand = jnp.tanh(by_hand @ kernel + bias)
    looped = jax.jit(run).lower(x)
    with TraceOptions(unroll=True).active():
        flat = jax.jit(lambda x: run(x)).lower(x)
    assert "while" in looped.as_text()
    assert "while" not in flat.as_text()
    for program in (looped, flat):
        # The order of operations inside a product differs, and so float32's last digits.
        assert np.allclose(program.compile()(x), by_hand, atol=1e-6)
