"""Rotary positions of LTX-2, with different frequencies for all heads of a token.

Positions are fractions of a reference size, scaled to -1 to 1. Frequencies span π / 2 to θ · π / 2
and are shared by the axes. Rotated pairs are adjacent dimensions, or the two halves of a head.

Source: HaCohen et al. 2026 (LTX-2), section 3; diffusers transformer_ltx2.py,
LTX2AudioVideoRotaryPosEmbed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from models.nn.layers.rope import partners_by_order, partners_by_product

KINDS = ("interleaved", "split")
"""Pairing of dimensions: adjacent ones, or the first half of a head with the second."""


class HeadRotaryTable(NamedTuple):
    """Cosines and sines for RoPE, [tokens, heads, dim], float32.

    Each sine multiplies the dimension's partner, and is negative for the first dimension of a pair.
    """

    cos: Array
    sin: Array


def head_rotary_table(
    fractions: np.ndarray, kind: str, heads: int, head_dim: int, theta: float
) -> HeadRotaryTable:
    """Return the rotations of tokens at positions from 0 to 1.

    Angles are rounded to float32 as in the reference, since they reach θ · π / 2. Dimensions
    without a frequency are not rotated and precede the others.

    Args:
        fractions: [tokens, axes], float32.
        kind: one of `KINDS`.
    """
    axes, pairs = fractions.shape[1], heads * head_dim // 2
    count = pairs // axes
    positions = fractions.astype(np.float32) * np.float32(2) - np.float32(1)
    angles = jnp.asarray(positions)[:, None, :] * jnp.asarray(_frequencies(count, theta))[:, None]
    unrotated = jnp.zeros((len(positions), pairs - axes * count), jnp.float32)
    angles = jnp.concatenate([unrotated, angles.reshape(len(positions), -1)], axis=-1)
    angles = angles.reshape(len(positions), heads, head_dim // 2)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return HeadRotaryTable(_both(cos, cos, kind), _both(-sin, sin, kind))


def rotate_heads(
    x: Float[Array, "batch tokens heads dim"], rope: HeadRotaryTable, kind: str
) -> Array:
    """Rotate each pair of head dimensions by its RoPE angle, in float32."""
    if kind == "split":
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        partners = jnp.concatenate([second, first], axis=-1)
    else:
        partners = jax.lax.platform_dependent(x, tpu=partners_by_product, default=partners_by_order)
    return (x.astype(jnp.float32) * rope.cos + partners * rope.sin).astype(x.dtype)


def _both(first: Array, second: Array, kind: str) -> Array:
    """Arrange RoPE values for the first and second dimensions of each pair."""
    if kind == "split":
        return jnp.concatenate([first, second], axis=-1)
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


def _frequencies(count: int, theta: float) -> np.ndarray:
    """Return RoPE frequencies from π / 2 to θ · π / 2, computed in float64."""
    return (theta ** np.linspace(0.0, 1.0, count) * np.pi / 2).astype(np.float32)
