"""Kernel interface: attention over some of the keys, with what it takes to add the rest."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

NOTHING = -1e30
"""Log of the weight of no keys: finite, so that two nothings do not make a NaN."""


class Attended(NamedTuple):
    """Values found among some of the keys, and the log of the weight of those keys."""

    values: Float[Array, "batch q_tokens heads dim"]
    """Float32."""
    log_sum: Float[Array, "batch q_tokens heads"]
    """Log of the sum of the exponentials of the logits, float32."""

    def merge(self, other: Attended) -> Attended:
        """Merge attention over the keys of both.

        Source: Milakov and Gimelshein 2018, section 3.1; Liu et al. 2023 (ring attention), section
        3.
        """
        log_sum = jnp.logaddexp(self.log_sum, other.log_sum)
        mine, theirs = (jnp.exp(part.log_sum - log_sum)[..., None] for part in (self, other))
        return Attended(mine * self.values + theirs * other.values, log_sum)


@runtime_checkable
class Kernel(Protocol):
    """softmax(q kᵀ · scale) v over the keys that count.

    q [batch, q_tokens, heads, dim]; k, v [batch, kv_tokens, heads, dim]; keys, which of them
    count, [kv_tokens]; None: all. Where none counts, `log_sum` is NOTHING or less.
    """

    def __call__(
        self,
        q: Float[Array, "batch q_tokens heads dim"],
        k: Float[Array, "batch kv_tokens heads dim"],
        v: Float[Array, "batch kv_tokens heads dim"],
        *,
        scale: float,
        keys: Bool[Array, " kv_tokens"] | None = None,
    ) -> Attended:
        """Return the attended values, with what is needed to join parts of the keys."""
