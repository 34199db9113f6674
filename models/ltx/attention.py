"""Attention of LTX-2: queries and keys normalized over all heads, RoPE, and gated heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.ltx.rope import HeadRotaryTable, rotate_heads
from models.nn.attention.attention import CrossAttention
from models.nn.layers.norms import RMSNorm
from models.nn.layers.parameterised import from_heads, linear, to_heads

Tokens = Float[Array, "batch tokens width"]
Others = Float[Array, "batch others other_width"]
"""Tokens of a second sequence in the same call."""


@dataclass(frozen=True)
class HeadsShape:
    """Widths, heads and options of an LTX-2 attention layer."""

    queries: int
    """Width of the query tokens."""
    keys: int
    """Width of the key and value tokens."""
    heads: int
    head_dim: int
    gated: bool
    """Whether each query token gates the outputs of its heads."""
    rope: str
    """Pairing of RoPE dimensions: one of `models.ltx.rope.KINDS`."""
    epsilon: float = 1e-6
    """Epsilon of the query and key norms."""
    use_bias: bool = True
    """Whether queries, keys and values have biases."""
    use_out_bias: bool = True


class RotaryAttention(nnx.Module):
    """Self-attention or cross-attention with RoPE.

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
        rope: HeadRotaryTable | None = None,
        key_rope: HeadRotaryTable | None = None,
        skip_self: Bool[Array, " batch"] | None = None,
    ) -> Tokens:
        """Attend to `context`, or to the tokens themselves.

        Args:
            context: tokens of keys and values; None for self-attention.
            rope: RoPE of the queries; None disables RoPE for queries and keys.
            key_rope: RoPE of the keys; None uses the queries'.
            skip_self: rows whose tokens output their own values in place of the attention's output;
                None: no rows.
        """
        source, heads, kind = x if context is None else context, self.shape.heads, self.shape.rope
        q = self.q_norm.over_heads(to_heads(self.q, x, heads))
        k = self.k_norm.over_heads(to_heads(self.k, source, heads))
        if rope is not None:
            q, k = rotate_heads(q, rope, kind), rotate_heads(k, key_rope or rope, kind)
        v = to_heads(self.v, source, heads)
        output = attention(q, k, v)
        if skip_self is not None:
            output = jnp.where(skip_self[:, None, None, None], v, output)
        if self.gate is not None:
            output = output * (2 * jax.nn.sigmoid(self.gate(x)))[..., None]
        return from_heads(self.out, output)
