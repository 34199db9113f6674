"""Attention by blocks of keys: memory that does not grow with the square of the sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from models.nn.attention.kernel import NOTHING, Attended, Kernel
from models.nn.attention.xla import xla_kernel


def blockwise_kernel(block: int) -> Kernel:
    """Fulfils `models.nn.attention.kernel.Kernel`, so many keys at a time.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n²) Memory", section 2.
    """

    def attend(
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> Attended:
        tokens = k.shape[1]
        whole = tokens // block * block
        found = Attended(
            jnp.zeros((*q.shape[:3], v.shape[-1])), jnp.full(q.shape[:3], NOTHING, jnp.float32)
        )

        def of(start: Array | int, size: int, found: Attended) -> Attended:
            cut = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, start, size, axis)  # noqa: E731
            some = None if keys is None else cut(keys, 0)
            return found.merge(xla_kernel(q, cut(k, 1), cut(v, 1), scale=scale, keys=some))

        if whole:
            starts = jnp.arange(0, whole, block)
            found, _ = jax.lax.scan(lambda found, at: (of(at, block, found), None), found, starts)
        return of(whole, tokens - whole, found) if whole < tokens else found

    return attend
