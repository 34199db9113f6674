"""Attention by the layout that is traced for: whole on one device, or shared by the slice."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from models.nn.attention.exchange import ring, ulysses
from models.nn.attention.kernel import Kernel
from models.sharding import Layout, MeshAxes

AXES = ("batch", "tokens", "heads", None)
WHOLE_TOKENS = ("batch", None, "heads", None)


def split_self_attention(
    layout: Layout,
    q: Float[Array, "batch tokens heads dim"],
    k: Float[Array, "batch tokens heads dim"],
    v: Float[Array, "batch tokens heads dim"],
    keys: Bool[np.ndarray, " tokens"] | None,
    scale: float,
) -> Float[Array, "batch tokens heads dim"]:
    """Among tokens that lie on several devices, each with its share. They divide evenly."""
    _, tokens, over_heads, _ = layout.split(AXES, q.shape)
    turns, swaps = exchange(layout, tokens, q.shape[2] // layout.devices(over_heads))
    attend = ulysses(swaps, ring(turns, layout.devices(turns), layout.kernel, scale))
    spec = layout.spec(AXES, q.shape)
    specs = (spec, spec, spec, None if keys is None else PartitionSpec(tokens))
    return jax.shard_map(attend, mesh=layout.mesh, in_specs=specs, out_specs=spec, check_vma=False)(
        q, k, v, None if keys is None else jnp.asarray(keys)
    )


def split_cross_attention(
    layout: Layout,
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    scale: float,
) -> Float[Array, "batch q_tokens heads dim"]:
    """Of tokens that lie on several devices to keys that lie on each of them: no exchange."""
    q_spec, k_spec = layout.spec(AXES, q.shape), layout.spec(WHOLE_TOKENS, k.shape)
    return jax.shard_map(
        partial(_alone, layout.kernel, scale),
        mesh=layout.mesh,
        in_specs=(q_spec, k_spec, k_spec),
        out_specs=q_spec,
        check_vma=False,
    )(q, k, v)


def exchange(layout: Layout, tokens: MeshAxes, heads: int) -> tuple[MeshAxes, MeshAxes]:
    """Which mesh axes of the tokens are rings, and which swap tokens for heads.

    Ulysses where it was asked for, and over fsdp where the heads still divide: it moves less.
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
