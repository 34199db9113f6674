"""Attention kernels: values of one type, chosen by the caller, never by a flag inside a network."""

from __future__ import annotations

from typing import Protocol

import jax
from jaxtyping import Array, Float


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


def xla_attention(q, k, v, bias=None, scale=None):  # type: ignore[no-untyped-def]
    """XLA's own, on every backend: softmax in float32, the logits materialised."""
    return jax.nn.dot_product_attention(q, k, v, bias=bias, scale=scale, implementation="xla")


default_attention: Attention = xla_attention
