"""Attention by XLA's own products, on every backend: the logits are materialised, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.kernel import NOTHING, Attended

TINY = 1e-30
"""Bound below any sum of weights over keys that count: the largest of those is one."""


def xla_kernel(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    *,
    scale: float,
    keys: Bool[Array, " kv_tokens"] | None = None,
) -> Attended:
    """Implementation of `models.nn.kernels.kernel.Kernel`. Source: Vaswani et al. 2017, eq. 1."""
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
    return Attended(
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
) -> Attended:
    """Implementation of `models.nn.kernels.kernel.Kernel` for few keys.

    Weights are divided by their sum before they meet the values. Where keys are fewer than a head
    is wide, or nearly, that is less to divide, and the values come out in their own dtype. Source:
    Vaswani et al. 2017, eq. 1.
    """
    logits = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if keys is not None:
        logits = jnp.where(keys, logits, NOTHING)
    weights = jax.nn.softmax(logits, axis=-1).astype(v.dtype)
    values = jnp.einsum("bhqk,bkhd->bqhd", weights, v).astype(jnp.float32)
    return Attended(values, jax.nn.logsumexp(logits, axis=-1).transpose(0, 2, 1))
