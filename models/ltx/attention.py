"""Attention of LTX-2: queries and keys normed over all heads, turned, and heads gated by query."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.ltx.rope import HeadTurns, turn
from models.nn.attention.attention import CrossAttention
from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import from_heads, linear, to_heads

Tokens = Float[Array, "batch tokens width"]
Others = Float[Array, "batch others other_width"]
"""Tokens of another sequence, in the same call."""


@dataclass(frozen=True)
class HeadsShape:
    """Shape of one attention."""

    queries: int
    """Width of the tokens that ask."""
    keys: int
    """Width of the tokens that are asked."""
    heads: int
    head_dim: int
    gated: bool
    """True if each query scales what its heads find."""
    rope: str
    """Kind of pairs: one of `models.ltx.rope.KINDS`."""
    epsilon: float = 1e-6
    """Epsilon of the norms of queries and keys."""
    use_bias: bool = True
    """True if queries, keys and values have biases."""
    use_out_bias: bool = True


class TurnedAttention(nnx.Module):
    """Attention of one sequence to another or to itself.

    Source: diffusers transformer_ltx2.py, LTX2Attention.
    """

    def __init__(self, shape: HeadsShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        dense = partial(linear, rngs=rngs, param_dtype=param_dtype)
        norm = partial(RMSNorm, rngs=rngs, param_dtype=param_dtype)
        width = shape.heads * shape.head_dim
        self.shape = shape
        self.q = dense(shape.queries, width, ("embed", "heads"), use_bias=shape.use_bias)
        self.k = dense(shape.keys, width, ("embed", "heads"), use_bias=shape.use_bias)
        self.v = dense(shape.keys, width, ("embed", "heads"), use_bias=shape.use_bias)
        self.q_norm, self.k_norm = (norm(width, shape.epsilon) for _ in range(2))
        self.out = dense(width, shape.queries, ("heads", "embed"), use_bias=shape.use_out_bias)
        self.gate = dense(shape.queries, shape.heads, ("embed", "heads")) if shape.gated else None

    def __call__(
        self,
        x: Tokens,
        attention: CrossAttention,
        context: Others | None = None,
        turns: HeadTurns | None = None,
        key_turns: HeadTurns | None = None,
        alone: Bool[Array, " batch"] | None = None,
    ) -> Tokens:
        """Attend.

        Args:
            context: that is asked; None: the tokens themselves.
            turns: of the queries; None: they have no positions, nor have the keys.
            key_turns: of the keys; None: those of the queries.
            alone: rows whose tokens have their own values instead of what is found; None: none.
        """
        asked, heads, kind = x if context is None else context, self.shape.heads, self.shape.rope
        q = self.q_norm.over_heads(to_heads(self.q, x, heads))
        k = self.k_norm.over_heads(to_heads(self.k, asked, heads))
        if turns is not None:
            q, k = turn(q, turns, kind), turn(k, key_turns or turns, kind)
        v = to_heads(self.v, asked, heads)
        found = attention(q, k, v)
        if alone is not None:
            found = jnp.where(alone[:, None, None, None], v, found)
        if self.gate is not None:
            found = found * (2 * jax.nn.sigmoid(self.gate(x)))[..., None]
        return from_heads(self.out, found)
