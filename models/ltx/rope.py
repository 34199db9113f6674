"""Rotary positions of LTX-2: all heads of a token turn by frequencies of their own.

Positions are fractions of a reference size, from -1 to 1, and frequencies span from π / 2 to
θ · π / 2, shared by the axes. The pairs that turn are neighbours or halves of a head.

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
"""Pairs of neighbours, or the first half of a head with the second."""


class HeadTurns(NamedTuple):
    """Cosines and sines of each token, head and number of the head, [tokens, heads, dim], float32.

    The sine is the one that a number's partner is taken with, negative for the first of a pair.
    """

    cos: Array
    sin: Array


def turns_of(
    fractions: np.ndarray, kind: str, heads: int, head_dim: int, theta: float
) -> HeadTurns:
    """Return the turns of tokens at places from 0 to 1.

    Angles are rounded to float32 as in the reference: they reach θ · π / 2. What frequencies do
    not fill stands still, and comes first.

    Args:
        fractions: [tokens, axes], float32.
        kind: one of `KINDS`.
    """
    axes, pairs = fractions.shape[1], heads * head_dim // 2
    count = pairs // axes
    places = fractions.astype(np.float32) * np.float32(2) - np.float32(1)
    angles = jnp.asarray(places)[:, None, :] * jnp.asarray(_frequencies(count, theta))[:, None]
    still = jnp.zeros((len(places), pairs - axes * count), jnp.float32)
    angles = jnp.concatenate([still, angles.reshape(len(places), -1)], axis=-1)
    angles = angles.reshape(len(places), heads, head_dim // 2)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return HeadTurns(_both(cos, cos, kind), _both(-sin, sin, kind))


def turn(x: Float[Array, "batch tokens heads dim"], turns: HeadTurns, kind: str) -> Array:
    """Turn each pair by its angle, in float32."""
    if kind == "split":
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        partners = jnp.concatenate([second, first], axis=-1)
    else:
        partners = jax.lax.platform_dependent(x, tpu=partners_by_product, default=partners_by_order)
    return (x.astype(jnp.float32) * turns.cos + partners * turns.sin).astype(x.dtype)


def _both(first: Array, second: Array, kind: str) -> Array:
    """Values of the first and the second number of each pair, each in its place."""
    if kind == "split":
        return jnp.concatenate([first, second], axis=-1)
    return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)


def _frequencies(count: int, theta: float) -> np.ndarray:
    """Return π / 2 up to θ · π / 2, computed in float64."""
    return (theta ** np.linspace(0.0, 1.0, count) * np.pi / 2).astype(np.float32)
