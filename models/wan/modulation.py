"""Modulations of Wan's blocks by time: shifts, scales and gates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from models.nn.layers.norms import layer_norm

Tokens = Float[Array, "batch tokens width"]


def modulation_table(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param[Any]:
    """Return `count` learned vectors, the modulations at a zero condition; always float32."""
    vectors = jax.random.normal(rngs.params(), (1, count, width), jnp.float32)
    return nnx.Param(vectors / width**0.5, axes=(None, None, "embed"))


def modulation(
    table: nnx.Param[Any], condition: Float[Array, "batch times count width"]
) -> list[Float[Array, "batch times width"]]:
    """Add the condition to the learned modulation vectors, in float32.

    Source: Peebles and Xie 2022 (DiT), section 3.2, adaLN; Chen et al. 2023 (PixArt-α), section
    2.3, for the shared linear.
    """
    vectors = table[...] + condition.astype(jnp.float32)
    return [vectors[:, :, index] for index in range(table.shape[1])]


def modulate(
    x: Tokens,
    shift: Float[Array, "batch times width"],
    scale: Float[Array, "batch times width"],
    epsilon: float,
) -> Tokens:
    """Apply adaptive layer norm in float32; returns the dtype of `x`. Times are 1 or the tokens."""
    normed = layer_norm(x.astype(jnp.float32), epsilon)
    return (normed * (1 + scale) + shift).astype(x.dtype)


def gated(x: Tokens, update: Tokens, gate: Float[Array, "batch times width"]) -> Tokens:
    """Add a gated update to the residual stream: x + gate · update, in float32."""
    return (x.astype(jnp.float32) + update.astype(jnp.float32) * gate).astype(x.dtype)
