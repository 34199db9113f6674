"""RMS norms over a token's width, in one piece or split by heads."""

from __future__ import annotations

import jax
import numpy as np
from flax import nnx

from models.nn.layers.norms import RMSNorm

HEADS, DIM = 3, 4


def test_norm_over_heads_equals_norm_over_the_width() -> None:
    norm = RMSNorm(HEADS * DIM, 1e-6, rngs=nnx.Rngs(0))
    norm.scale[...] = jax.random.normal(jax.random.key(1), (HEADS * DIM,))
    x = jax.random.normal(jax.random.key(2), (2, 5, HEADS, DIM))
    # The last digits of float32: the order of the sum may differ.
    np.testing.assert_allclose(
        norm.over_heads(x).reshape(2, 5, -1), norm(x.reshape(2, 5, -1)), rtol=1e-6
    )
