"""Flash attention for NVIDIA GPUs by cuDNN, for bfloat16 and float16 only."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.kernel import NOTHING, AttentionOutput
from models.parallel import jax_internals

DTYPES = (jnp.bfloat16, jnp.float16)


def cudnn_kernel(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    *,
    scale: float,
    keys: Bool[Array, " kv_tokens"] | None = None,
) -> AttentionOutput:
    """Attend with cuDNN: implementation of `models.nn.kernels.kernel.Kernel`.

    Raises:
        ValueError: cuDNN has no flash attention for this dtype.
        RuntimeError: JAX has no cuDNN.

    Source: Dao et al. 2022, "FlashAttention", algorithm 1.
    """
    if q.dtype not in DTYPES:
        raise ValueError(f"cuDNN's flash attention takes bfloat16 or float16, not {q.dtype}")
    if keys is None:
        attention = jax_internals.cudnn_attention
        values, log_sum = attention(q, k, v, scale=scale, return_residual=True)
        return AttentionOutput(values.astype(jnp.float32), log_sum.transpose(0, 2, 1))
    return _over_first(q, *_counted_first(k, v, keys), scale, keys.sum(dtype=jnp.int32))


def _over_first(q: Array, k: Array, v: Array, scale: float, count: Array) -> AttentionOutput:
    """Attend to the first `count` keys; without keys, return zeros and a log-sum of `NOTHING`."""
    batch, tokens = q.shape[:2]
    values, log_sum = jax_internals.cudnn_attention(
        q,
        k,
        v,
        q_seqlen=jnp.full(batch, tokens, jnp.int32),
        kv_seqlen=jnp.full(batch, jnp.maximum(count, 1), jnp.int32),
        mask_type=jax_internals.CudnnMaskType.PADDING,
        scale=scale,
        return_residual=True,
    )
    log_sum = jnp.where(count > 0, log_sum.transpose(0, 2, 1), NOTHING)
    return AttentionOutput(jnp.where(count > 0, values, 0).astype(jnp.float32), log_sum)


def _counted_first(k: Array, v: Array, keys: Array) -> tuple[Array, Array]:
    """Move the unmasked keys and values to the front: cuDNN masks by length.

    A mask by key would be as large as the logits.
    """
    order = jnp.argsort(~keys, stable=True)
    return k[:, order], v[:, order]
