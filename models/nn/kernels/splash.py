"""Flash attention for TPUs by Pallas's splash kernel, without a mask for whole blocks of keys.

Only the keys after the last whole block are padded, masked and merged. In the compiler's schedule
for v6e a mask adds 14 per cent to every block (20,063 bundles instead of 17,608; jax 0.10.2, libtpu
0.0.51). Tokamax's splash takes 17,138, three per cent less: not worth its version pins. Its 14,285
with a fixed maximum hold only for logits that are known to be small.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.block_sizes import LANES, SUBLANES, AttentionBlocks, Choose, even
from models.nn.kernels.kernel import AttentionOutput, Kernel
from models.parallel import jax_internals

Heads = Float[Array, "batch_heads _tokens _dim"]
Keys = Bool[Array, " kv_tokens"] | None


def splash_kernel(choose: Choose, *, interpret: bool = False) -> Kernel:
    """Build a splash attention kernel: implementation of `models.nn.kernels.kernel.Kernel`.

    Args:
        choose: returns the block sizes.
        interpret: run without a TPU, slowly.

    Source: Dao et al. 2022, "FlashAttention", algorithm 1.
    """

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        blocks = choose(q.dtype, q.shape[-1], k.shape[1])
        block_q, q_tokens = even(q.shape[1], blocks.q, SUBLANES)
        queries = padded(head_major(q * jnp.asarray(scale, q.dtype)), q_tokens)

        def part(start: int, end: int, blocks: AttentionBlocks) -> AttentionOutput:
            cut = slice(start, end)
            mask = None if keys is None else keys[cut]
            sizes = jax_internals.BlockSizes(block_q, blocks.kv, blocks.kv_compute)
            out, log_sum = _over(
                queries, head_major(k[:, cut]), head_major(v[:, cut]), mask, sizes, interpret
            )
            return token_major(out, log_sum, q)

        return reduce(AttentionOutput.merge, [part(*cut) for cut in key_parts(k.shape[1], blocks)])

    return attend


def key_parts(tokens: int, blocks: AttentionBlocks) -> list[tuple[int, int, AttentionBlocks]]:
    """Return start, end and blocks of both ranges of keys: whole blocks, and the remainder."""
    full_tokens = tokens // blocks.kv * blocks.kv
    parts = [(0, full_tokens, blocks)] if full_tokens else []
    if full_tokens < tokens:
        compute, kv = even(tokens - full_tokens, blocks.kv_compute, LANES)
        parts.append((full_tokens, tokens, AttentionBlocks(blocks.q, kv, compute)))
    return parts


def head_major(x: Float[Array, "batch tokens heads dim"]) -> Float[Array, "_ tokens _lanes"]:
    """Transpose to [batch · heads, tokens, dim], dim padded with zeros to whole lanes."""
    moved = x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])
    return jnp.pad(moved, ((0, 0), (0, 0), (0, -x.shape[3] % LANES)))


def token_major(
    values: Heads,
    log_sum: Float[Array, "batch_heads _tokens"],
    q: Float[Array, "batch q_tokens heads dim"],
) -> AttentionOutput:
    """Restore the order of attention outputs by query, and drop padding."""
    batch, tokens, heads, dim = q.shape
    split = values.reshape(batch, heads, *values.shape[1:])[:, :, :tokens, :dim]
    return AttentionOutput(
        split.transpose(0, 2, 1, 3).astype(jnp.float32),
        log_sum.reshape(batch, heads, -1)[:, :, :tokens].transpose(0, 2, 1),
    )


def padded(x: Heads, tokens: int) -> Heads:
    """Pad the token axis with zeros to `tokens`."""
    return jnp.pad(x, ((0, 0), (0, tokens - x.shape[1]), (0, 0)))


def _over(
    q: Heads, k: Heads, v: Heads, keys: Keys, sizes: Any, interpret: bool
) -> tuple[Heads, Float[Array, "batch_heads _tokens"]]:
    """Attend to a range of keys; return values and log-sums.

    The kernel is masked only if necessary.
    """
    kernel = jax_internals.SplashAttentionKernel(
        jax_internals.MaskInfo(*[None] * len(jax_internals.MaskInfo._fields)),
        None,
        None,
        block_sizes=sizes,
        is_mqa=False,
        save_residuals=True,
        mask_value=jax_internals.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=None,
        interpret=interpret,
    )

    def unmasked(q: Heads, k: Heads, v: Heads, _: Keys = None) -> tuple[Array, Array]:
        out, (log_sum,) = kernel(q, k, v)
        return out, log_sum

    def masked(q: Heads, k: Heads, v: Heads, keys: Array) -> tuple[Array, Array]:
        ids = jax_internals.SegmentIds(jnp.ones(q.shape[1], jnp.int32), keys.astype(jnp.int32))
        out, (log_sum,) = kernel(q, k, v, ids)
        return out, log_sum

    padding = -k.shape[1] % sizes.block_kv
    if padding:
        counted = jnp.ones(k.shape[1], bool) if keys is None else keys
        tokens = k.shape[1] + padding
        return masked(q, padded(k, tokens), padded(v, tokens), jnp.pad(counted, (0, padding)))
    if keys is None:
        return unmasked(q, k, v)
    output: tuple[Array, Array] = jax.lax.cond(keys.all(), unmasked, masked, q, k, v, keys)
    return output
