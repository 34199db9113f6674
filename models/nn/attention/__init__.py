"""Attention kernels: values of one type, chosen by the caller, never by a flag inside a network."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@runtime_checkable
class Attention(Protocol):
    """softmax(q kᵀ · scale + bias) v.

    q [batch, q_tokens, heads, dim]; k, v [batch, kv_tokens, heads, dim];
    bias, added to the logits: [batch or 1, heads or 1, q_tokens, kv_tokens];
    scale defaults to dim ** -0.5. Returns [batch, q_tokens, heads, dim].
    """

    def __call__(
        self,
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        bias: Float[Array, ...] | None = None,
        scale: float | None = None,
    ) -> Float[Array, "batch q_tokens heads dim"]: ...


def xla_attention(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    bias: Float[Array, ...] | None = None,
    scale: float | None = None,
) -> Float[Array, "batch q_tokens heads dim"]:
    """By XLA's own products, on every backend: the logits are materialised, in float32.

    Source: Vaswani et al. 2017, eq. 1.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    logits = factor * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


default_attention: Attention = xla_attention
