"""Interface of attention kernels: results over parts of the keys can be merged."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

NOTHING = -1e30
"""Log-sum of no keys: finite, so that merging two empty parts gives no NaN."""


class AttentionOutput(NamedTuple):
    """Attention over some of the keys: values, and the log of the keys' total weight."""

    values: Float[Array, "batch q_tokens heads dim"]
    """Attended values of each query, float32."""
    log_sum: Float[Array, "batch q_tokens heads"]
    """Log of the sum of the exponentials of the logits, float32."""

    def merge(self, other: AttentionOutput) -> AttentionOutput:
        """Merge the output with that of attention over other keys.

        Source: Milakov and Gimelshein 2018, section 3.1; Liu et al. 2023 (ring attention), section
        3.
        """
        log_sum = jnp.logaddexp(self.log_sum, other.log_sum)
        first, second = (jnp.exp(part.log_sum - log_sum)[..., None] for part in (self, other))
        return AttentionOutput(first * self.values + second * other.values, log_sum)


@runtime_checkable
class Kernel(Protocol):
    """Type of attention kernels: softmax(q kᵀ · scale) v over the unmasked keys.

    q [batch, q_tokens, heads, dim]; k, v [batch, kv_tokens, heads, dim]; keys, the mask of keys
    that count, [kv_tokens]; None: all. If no key counts, `log_sum` is NOTHING or less.
    """

    def __call__(
        self,
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> AttentionOutput:
        """Return the attention's values, and the log-sums that merging with other keys needs."""


def kernel_name(kernel: object) -> str:
    """Return a kernel's name, which differs between kernels that compute in different ways."""
    return str(getattr(kernel, "__qualname__", type(kernel).__qualname__))
