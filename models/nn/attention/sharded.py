"""Attention under the traced layout: shard_map over rows, tokens and heads of a mesh slice."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from models.nn.attention.sequence_parallel import full_attention, ring, ulysses
from models.nn.kernels.kernel import Kernel
from models.parallel.axis_rules import Layout, MeshAxes

AXES = ("batch", "tokens", "heads", None)
WHOLE_TOKENS = ("batch", None, "heads", None)


def split_self_attention(
    layout: Layout,
    q: Float[Array, "batch tokens heads dim"],
    k: Float[Array, "batch tokens heads dim"],
    v: Float[Array, "batch tokens heads dim"],
    keys: Bool[np.ndarray, " tokens"] | Bool[Array, "batch tokens"] | None,
    scale: float,
) -> Float[Array, "batch tokens heads dim"]:
    """Compute self-attention among tokens split evenly over several devices."""
    if isinstance(keys, jax.Array):
        return _split_by_row(layout, q, k, v, keys, scale)
    over_rows, tokens, over_heads, _ = layout.split(AXES, q.shape)
    heads = q.shape[0] * q.shape[2] // layout.devices(over_rows + over_heads)
    turns, swaps = exchange(layout, tokens, heads)
    spec = layout.spec(AXES, q.shape)
    if turns:
        inner = ring(turns, layout.devices(turns), layout.kernel, scale)
        shares = None if keys is None else jnp.asarray(keys)
    else:
        inner, shares = full_attention(keys, layout.kernel, scale), None
    specs = (spec, spec, spec, None if shares is None else PartitionSpec(tokens))
    return jax.shard_map(
        ulysses(swaps, inner), mesh=layout.mesh, in_specs=specs, out_specs=spec, check_vma=False
    )(q, k, v, shares)


def _split_by_row(
    layout: Layout,
    q: Float[Array, "batch tokens heads dim"],
    k: Float[Array, "batch tokens heads dim"],
    v: Float[Array, "batch tokens heads dim"],
    keys: Bool[Array, "batch tokens"],
    scale: float,
) -> Float[Array, "batch tokens heads dim"]:
    """Attend with a key mask per row, one row at a time: kernels take one mask for all rows."""
    over_rows, tokens, over_heads, _ = layout.split(AXES, q.shape)
    turns, swaps = exchange(layout, tokens, q.shape[2] // layout.devices(over_heads))
    attend = ulysses(swaps, ring(turns, layout.devices(turns), layout.kernel, scale))
    spec, of_keys = layout.spec(AXES, q.shape), PartitionSpec(over_rows or None, tokens or None)

    def attend_row(row: tuple[Array, Array, Array, Array]) -> Array:
        q, k, v, keys = row
        return attend(q[None], k[None], v[None], keys)[0]

    attended: Array = jax.shard_map(
        lambda *rows: jax.lax.map(attend_row, rows),
        mesh=layout.mesh,
        in_specs=(spec, spec, spec, of_keys),
        out_specs=spec,
        check_vma=False,
    )(q, k, v, keys)
    return attended


def split_cross_attention(
    layout: Layout,
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    scale: float,
) -> Float[Array, "batch q_tokens heads dim"]:
    """Attend from split tokens to keys that each device has in full, without communication."""
    q_spec, k_spec = layout.spec(AXES, q.shape), layout.spec(WHOLE_TOKENS, k.shape)
    return jax.shard_map(
        partial(_alone, layout.kernel, scale),
        mesh=layout.mesh,
        in_specs=(q_spec, k_spec, k_spec),
        out_specs=q_spec,
        check_vma=False,
    )(q, k, v)


def exchange(layout: Layout, tokens: MeshAxes, heads: int) -> tuple[MeshAxes, MeshAxes]:
    """Choose which mesh axes of the tokens use ring attention, and which use Ulysses.

    Ulysses is used for the `ulysses` axis, and for fsdp if the heads still divide: it moves less.
    An axis that does not divide the heads uses a ring, even `ulysses`: the result is the same, but
    more is moved.

    Args:
        heads: heads that one device attends with at once, of all rows.
    """
    chosen: MeshAxes = ()
    for name in ("ulysses", "fsdp"):
        names = (*chosen, name)
        if name in tokens and heads % layout.devices(names) == 0:
            chosen = names
    swaps = tuple(name for name in tokens if name in chosen)
    return tuple(name for name in tokens if name not in chosen), swaps


def _alone(kernel: Kernel, scale: float, q: Array, k: Array, v: Array) -> Array:
    return kernel(q, k, v, scale=scale).values.astype(v.dtype)
