"""Activations, as the reference computes them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def erf_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute x · Φ(x), in float32 whatever the dtype of `x`, which the result has.

    By the error function, as torch has it. `jax.nn.gelu` takes its complement, which a TPU needs
    three times as long for, and rounds it to the dtype of `x` before it is multiplied.

    Source: Hendrycks and Gimpel 2016 (GELU), section 2.
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def tanh_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute x · Φ(x), Φ by its approximation with a hyperbolic tangent, in the dtype of `x`.

    Source: Hendrycks and Gimpel 2016 (GELU), section 2.
    """
    return jax.nn.gelu(x, approximate=True)
