"""Attention kernels made of XLA's products, for every backend: float32 logits are in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.kernel import NOTHING, AttentionOutput

TINY = 1e-30
"""Lower bound of a sum of weights; the largest weight of keys that count is one."""


def xla_kernel(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    *,
    scale: float,
    keys: Bool[Array, " kv_tokens"] | None = None,
) -> AttentionOutput:
    """Attend with XLA's products: implementation of `models.nn.kernels.kernel.Kernel`.

    Source: Vaswani et al. 2017, eq. 1.
    """
    logits = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if keys is not None:
        logits = jnp.where(keys, logits, NOTHING)
    largest = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - largest)
    if keys is not None:
        weights = jnp.where(keys, weights, 0)
    total = weights.sum(axis=-1).transpose(0, 2, 1)
    values = jnp.einsum(
        "bhqk,bkhd->bqhd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    return AttentionOutput(
        values / jnp.maximum(total, TINY)[..., None],
        jnp.where(total > 0, largest[..., 0].transpose(0, 2, 1) + jnp.log(total), NOTHING),
    )


def few_keys_kernel(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    *,
    scale: float,
    keys: Bool[Array, " kv_tokens"] | None = None,
) -> AttentionOutput:
    """Attend to few keys: implementation of `models.nn.kernels.kernel.Kernel`.

    Weights are divided by their sum before they are multiplied by the values. If there are hardly
    more keys than dimensions of a head, this divides fewer numbers, and the product is written in
    the values' dtype.

    Source: Vaswani et al. 2017, eq. 1.
    """
    logits = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if keys is not None:
        logits = jnp.where(keys, logits, NOTHING)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    values = jnp.einsum("bhqk,bkhd->bqhd", weights, v).astype(jnp.float32)
    return AttentionOutput(values, jax.nn.logsumexp(logits, axis=-1).transpose(0, 2, 1))
