"""Rotary position embedding over several axes, by adjacent pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Heads = Float[Array, "batch tokens heads dim"]


class RopeTable(NamedTuple):
    """Cosines and sines of every token and each number of a head, [tokens, head_dim], float32.

    `cos` is the cosine of the pair's angle. `sin` is the factor of the pair's other number,
    negative for the first of a pair. There is a leading batch axis if rows have positions of their
    own.
    """

    cos: np.ndarray | Array
    sin: np.ndarray | Array


def rope_table(ids: np.ndarray, axes_dims: Sequence[int], theta: float = 10_000.0) -> RopeTable:
    """Compute the table of positions `ids` [tokens, axes]; axis i rotates axes_dims[i] / 2 pairs.

    Computed in float64 on the host, since positions are static in a compiled shape.
    Source: Su et al. 2021 (RoFormer), eq. 15; Flux's use of three axes: diffusers
    transformer_flux.py, FluxPosEmbed.
    """
    angles = [
        np.outer(ids[:, axis].astype(np.float64), theta ** -(np.arange(0, dim, 2) / dim))
        for axis, dim in enumerate(axes_dims)
    ]
    table = np.repeat(np.concatenate(angles, axis=-1), 2, axis=-1)
    sin = np.sin(table)
    sin[:, ::2] *= -1
    return RopeTable(np.cos(table).astype(np.float32), sin.astype(np.float32))


def grid_rope_table(
    sizes: Sequence[int], axes_dims: Sequence[int], theta: float = 10_000.0
) -> RopeTable:
    """Compute `rope_table` of all positions of a grid, with the last axis fastest.

    The program contains only the angles along each axis, and expands them when it runs: the table
    of a long video is too large for a constant.
    """
    axes = [
        rope_table(np.arange(size)[:, None], (dim,), theta)
        for size, dim in zip(sizes, axes_dims, strict=True)
    ]
    cos, sin = (_spread([axis[part] for axis in axes], tuple(sizes)) for part in (0, 1))
    return RopeTable(cos, sin)


def _spread(axes: Sequence[np.ndarray | Array], sizes: tuple[int, ...]) -> Array:
    """Broadcast tables [size, dim] of each axis to [tokens, all dims] of the grid."""
    spread = []
    for index, values in enumerate(axes):
        shape = [1] * len(sizes) + [values.shape[-1]]
        shape[index] = sizes[index]
        spread.append(jnp.broadcast_to(values.reshape(shape), (*sizes, values.shape[-1])))
    return jnp.concatenate(spread, axis=-1).reshape(math.prod(sizes), -1)


def apply_rope(x: Heads, table: RopeTable) -> Heads:
    """Rotate each adjacent pair of the last axis by its token's angle, in float32."""
    cos, sin = (jnp.expand_dims(part, -2) for part in table)
    partners: Heads = jax.lax.platform_dependent(
        x, tpu=partners_by_product, default=partners_by_order
    )
    return (x.astype(jnp.float32) * cos + partners * sin).astype(x.dtype)


def partners_by_order(x: Heads) -> Heads:
    """Swap the numbers of each RoPE pair, in float32."""
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    return pairs[..., ::-1].reshape(x.shape)


def partners_by_product(x: Heads) -> Heads:
    """Swap the numbers of each RoPE pair by a product with a permutation, which is exact.

    For a TPU's matrix unit: separated pairs would have an axis of two numbers, of which a TPU reads
    128 at a time.
    """
    swap = np.eye(x.shape[-1], dtype=np.float32).reshape(-1, 2, x.shape[-1])[:, ::-1]
    permutation = jnp.asarray(swap.reshape(x.shape[-1], -1), x.dtype)
    return jnp.einsum(
        "bthd,de->bthe",
        x,
        permutation,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
