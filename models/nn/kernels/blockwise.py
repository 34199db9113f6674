"""Attention in blocks, with memory that does not grow with the square of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.kernels.block_sizes import Choose, even
from models.nn.kernels.kernel import NOTHING, AttentionOutput, Kernel, kernel_name
from models.nn.kernels.xla import xla_kernel

Keys = Bool[Array, " kv_tokens"] | None


def blockwise_kernel(choose: Choose) -> Kernel:
    """Build an attention kernel that processes queries and keys in blocks of chosen sizes.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory", section 2.
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
        over = partial(_over_blocks_of_keys, k=k, v=v, scale=scale, keys=keys, block=blocks.kv)
        return _over_blocks_of_queries(over, q, *even(q.shape[1], blocks.q, 1))

    return attend


def by_queries(kernel: Kernel, max_bytes: int) -> Kernel:
    """Limit a kernel's float32 logits to `max_bytes` by running it on fewer queries at a time.

    Each query still attends to all its keys at once, so nothing has to be merged.
    """

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        query_bytes = 4 * q.shape[0] * q.shape[2] * k.shape[1]
        size, padded = even(q.shape[1], max(1, max_bytes // query_bytes), 1)
        over = partial(kernel, k=k, v=v, scale=scale, keys=keys)
        return _over_blocks_of_queries(over, q, size, padded)

    return attend


def _over_blocks_of_queries(
    over: Callable[[Array], AttentionOutput], q: Array, size: int, padded: int
) -> AttentionOutput:
    tokens = q.shape[1]
    if size == tokens:
        return over(q)
    filled = jnp.pad(q, ((0, 0), (0, padded - tokens), (0, 0), (0, 0)))
    cut = filled.reshape(q.shape[0], -1, size, *q.shape[2:]).swapaxes(0, 1)
    output: AttentionOutput = jax.tree.map(
        lambda x: x.swapaxes(0, 1).reshape(q.shape[0], padded, *x.shape[3:])[:, :tokens],
        jax.lax.map(over, cut),
    )
    return output


def _over_blocks_of_keys(
    q: Array, k: Array, v: Array, scale: float, keys: Keys, block: int
) -> AttentionOutput:
    tokens = k.shape[1]
    full_tokens = tokens // block * block

    def add_keys(start: Array | int, size: int, attended: AttentionOutput) -> AttentionOutput:
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        mask = None if keys is None else cut(keys)
        return attended.merge(xla_kernel(q, cut(k, axis=1), cut(v, axis=1), scale=scale, keys=mask))

    def step(attended: AttentionOutput, start: Array) -> tuple[AttentionOutput, None]:
        return add_keys(start, block, attended), None

    attended = AttentionOutput(
        jnp.zeros((*q.shape[:3], v.shape[-1])), jnp.full(q.shape[:3], NOTHING, jnp.float32)
    )
    if full_tokens:
        attended, _ = jax.lax.scan(step, attended, jnp.arange(0, full_tokens, block))
    return (
        add_keys(full_tokens, tokens - full_tokens, attended) if full_tokens < tokens else attended
    )


def sized_kernel(small: Kernel, large: Kernel, max_bytes: int) -> Kernel:
    """Build a kernel that runs `small` if its float32 logits fit in `max_bytes`, else `large`."""

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        batch, tokens, heads, _ = q.shape
        logits = 4 * batch * heads * tokens * k.shape[1]
        return (small if logits <= max_bytes else large)(q, k, v, scale=scale, keys=keys)

    return attend


def by_keys(few: Kernel, many: Kernel, most: int) -> Kernel:
    """Build a kernel that runs `few` for up to `most` keys, else `many`."""

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        return (few if k.shape[1] <= most else many)(q, k, v, scale=scale, keys=keys)

    attend.__qualname__ = f"by_keys({kernel_name(few)}, {kernel_name(many)})"
    return attend
