"""Rotary position embedding over several axes, by adjacent pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class RopeTable(NamedTuple):
    """Cosine and sine of every token's angles, [tokens, head_dim / 2], float32."""

    cos: np.ndarray | Array
    sin: np.ndarray | Array


def rope_table(ids: np.ndarray, axes_dims: Sequence[int], theta: float = 10_000.0) -> RopeTable:
    """Angles of positions `ids` [tokens, axes]; axis i turns axes_dims[i] / 2 pairs of the head.

    Computed in float64 on the host, since positions are static in a compiled shape.

    Source: Su et al. 2021 (RoFormer), eq. 15; Flux's use of three axes: diffusers
    transformer_flux.py, FluxPosEmbed.
    """
    angles = [
        np.outer(ids[:, axis].astype(np.float64), theta ** -(np.arange(0, dim, 2) / dim))
        for axis, dim in enumerate(axes_dims)
    ]
    table = np.concatenate(angles, axis=-1)
    return RopeTable(np.cos(table).astype(np.float32), np.sin(table).astype(np.float32))


def grid_rope_table(
    sizes: Sequence[int], axes_dims: Sequence[int], theta: float = 10_000.0
) -> RopeTable:
    """`rope_table` of a whole grid's positions, the last axis running fastest.

    Only the angles along each axis are kept in the program, which spreads them when it runs: the
    table of a long video is too large for a constant.
    """
    axes = [
        rope_table(np.arange(size)[:, None], (dim,), theta)
        for size, dim in zip(sizes, axes_dims, strict=True)
    ]
    cos, sin = (_spread([axis[part] for axis in axes], tuple(sizes)) for part in (0, 1))
    return RopeTable(cos, sin)


def _spread(axes: Sequence[np.ndarray | Array], sizes: tuple[int, ...]) -> Array:
    """[size, pairs] of each axis → [tokens, all pairs]."""
    spread = []
    for index, values in enumerate(axes):
        shape = [1] * len(sizes) + [values.shape[-1]]
        shape[index] = sizes[index]
        spread.append(jnp.broadcast_to(values.reshape(shape), (*sizes, values.shape[-1])))
    return jnp.concatenate(spread, axis=-1).reshape(math.prod(sizes), -1)


def apply_rope(
    x: Float[Array, "batch tokens heads dim"], table: RopeTable
) -> Float[Array, "batch tokens heads dim"]:
    """Turn each adjacent pair of the last axis by its token's angle, in float32."""
    cos, sin = (jnp.asarray(part)[:, None, :] for part in table)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    real, imag = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([real * cos - imag * sin, imag * cos + real * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
