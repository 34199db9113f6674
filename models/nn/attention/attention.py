"""Attention functions and their types; a network receives a function, not a flag that selects it.

`attention` is for sequences that are complete on each device. `token_attention` and
`cross_attention` are for sequences that a layout splits.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from models.nn.attention.sharded import split_cross_attention, split_self_attention
from models.nn.layers.padded_tokens import counted, pad, padding
from models.parallel.trace_options import trace_options


@runtime_checkable
class Attention(Protocol):
    """Type of attention functions: softmax(q kᵀ · scale + bias) v.

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
    ) -> Float[Array, "batch q_tokens heads dim"]:
        """Return the attended values of each query."""


Keys = Bool[np.ndarray, " tokens"] | Bool[Array, "batch tokens"]
"""Mask of the keys that count: [tokens], constant in the program, or [batch, tokens], by row."""


@runtime_checkable
class TokenAttention(Protocol):
    """Type of self-attention functions: softmax(q kᵀ / √dim) v over the unmasked keys.

    `keys` None: all count.
    """

    def __call__(
        self,
        q: Float[Array, "batch tokens heads dim"],
        k: Float[Array, "batch tokens heads dim"],
        v: Float[Array, "batch tokens heads dim"],
        keys: Keys | None = None,
    ) -> Float[Array, "batch tokens heads dim"]:
        """Return the attended values of each token."""


@runtime_checkable
class CrossAttention(Protocol):
    """Type of cross-attention functions: softmax(q kᵀ / √dim) v over all keys of another array."""

    def __call__(
        self,
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
    ) -> Float[Array, "batch q_tokens heads dim"]:
        """Return the attended values of each query."""


def attention(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    bias: Float[Array, ...] | None = None,
    scale: float | None = None,
    keys: Keys | None = None,
) -> Float[Array, "batch q_tokens heads dim"]:
    """Compute attention with XLA's products, on every backend, with float32 logits in memory.

    Source: Vaswani et al. 2017, eq. 1.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    logits = factor * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    if keys is not None:
        mask = keys if keys.ndim == 1 else jnp.expand_dims(keys, (1, 2))
        logits = jnp.where(mask, logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def token_attention(
    q: Float[Array, "batch tokens heads dim"],
    k: Float[Array, "batch tokens heads dim"],
    v: Float[Array, "batch tokens heads dim"],
    keys: Keys | None = None,
) -> Float[Array, "batch tokens heads dim"]:
    """Compute self-attention with the traced layout and its kernel.

    Pads a sequence that is not padded to equal shares; `keys` must then be None.
    """
    layout = trace_options().layout
    if layout is None:
        return attention(q, k, v, keys=keys)
    tokens = q.shape[1]
    if padding(tokens):
        assert keys is None  # callers that pass `keys` have padded the sequence
        keys = counted(tokens)
        q, k, v = pad(q), pad(k), pad(v)
    return split_self_attention(layout, q, k, v, keys, q.shape[-1] ** -0.5)[:, :tokens]


def cross_attention(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
) -> Float[Array, "batch q_tokens heads dim"]:
    """Compute cross-attention with the traced layout, where each device has all keys.

    Pads queries that are not padded to equal shares.
    """
    layout = trace_options().layout
    if layout is None:
        return attention(q, k, v)
    output = split_cross_attention(layout, pad(q), k, v, q.shape[-1] ** -0.5)
    return output[:, : q.shape[1]]


default_attention: Attention = attention
