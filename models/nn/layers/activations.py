"""Activation functions, computed as in the reference implementations."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def erf_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute exact GELU, x · Φ(x), in float32; the result has the dtype of `x`.

    Uses the error function, as torch does. `jax.nn.gelu` uses its complement, which takes a TPU
    three times as long, and rounds it to the dtype of `x` before the multiplication.

    Source: Hendrycks and Gimpel 2016 (GELU), section 2.
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def tanh_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute GELU, x · Φ(x), with the tanh approximation of Φ, in the dtype of `x`.

    Source: Hendrycks and Gimpel 2016 (GELU), section 2.
    """
    return jax.nn.gelu(x, approximate=True)
