"""Attention by XLA's own products, on every backend: the logits are materialised, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.attention.kernel import NOTHING, Attended


def xla_kernel(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    *,
    scale: float,
    keys: Bool[Array, " kv_tokens"] | None = None,
) -> Attended:
    """Fulfils `models.nn.attention.kernel.Kernel`. Source: Vaswani et al. 2017, eq. 1."""
    logits = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    if keys is not None:
        logits = jnp.where(keys, logits, NOTHING)
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.exp(logits - log_sum[..., None])
    if keys is not None:
        weights = jnp.where(keys, weights, 0)
        log_sum = jnp.where(keys.any(), log_sum, NOTHING)
    values = jnp.einsum(
        "bhqk,bkhd->bqhd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    return Attended(values, log_sum.transpose(0, 2, 1))
