"""Transformer block with grouped queries, a gated attention and a gated feed-forward.

Source: diffusers' transformer_krea2.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.nn.blocks.double_stream import ByHead, Tokens
from models.nn.blocks.feed_forward import SwiGlu
from models.nn.layers.norms import OffsetRMSNorm
from models.nn.layers.parameterised import Kinds, from_heads, linear, to_heads
from models.nn.layers.rope import RopeTable, apply_rope

Attend = Callable[[ByHead, ByHead, ByHead], ByHead]
"""Function from queries, keys and values to the attended values."""


class BlockShape(NamedTuple):
    """Sizes of a block's layers; `epsilon` is that of all norms."""

    width: int
    heads: int
    key_heads: int
    inner: int
    """Hidden features of the feed-forward."""
    epsilon: float


class GatedAttention(nnx.Module):
    """Attention of grouped queries, whose output is gated by a sigmoid of the input.

    Queries and keys are normed by head. Source: Ainslie et al. 2023 (GQA), section 2.2; Qiu et al.
    2025 (Gated Attention), section 2.2, for the gate after the attention.
    """

    def __init__(self, shape: BlockShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width, head_dim = shape.width, shape.width // shape.heads
        dense = partial(linear, use_bias=False, rngs=rngs, param_dtype=param_dtype)
        to, keys = ("embed", "heads"), head_dim * shape.key_heads
        self.q, self.gate = dense(width, width, to), dense(width, width, to)
        self.k, self.v = dense(width, keys, to), dense(width, keys, to)
        self.out = dense(width, width, ("heads", "embed"))
        self.q_norm, self.k_norm = (
            OffsetRMSNorm(head_dim, shape.epsilon, axis=None, rngs=rngs) for _ in "qk"
        )
        self.heads, self.key_heads = shape.heads, shape.key_heads

    def __call__(self, x: Tokens, attend: Attend, rope: RopeTable | None = None) -> Tokens:
        """Attend with queries and keys that are rotated by `rope`, if any."""
        q = self.q_norm(to_heads(self.q, x, self.heads))
        k, v = (to_heads(layer, x, self.key_heads) for layer in (self.k, self.v))
        k = self.k_norm(k)
        if rope is not None:
            q, k = apply_rope(q, rope), apply_rope(k, rope)
        k, v = (jnp.repeat(part, self.heads // self.key_heads, axis=2) for part in (k, v))
        gate = jax.nn.sigmoid(to_heads(self.gate, x, self.heads))
        return from_heads(self.out, attend(q, k, v) * gate)


class PreNormBlock(nnx.Module):
    """Attention and gated feed-forward with a norm before each, without modulation."""

    def __init__(self, shape: BlockShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.attention_norm, self.feed_forward_norm = (
            OffsetRMSNorm(shape.width, shape.epsilon, rngs=rngs) for _ in range(2)
        )
        self.attention = GatedAttention(shape, **kinds)
        self.feed_forward = SwiGlu(shape.width, shape.inner, **kinds)

    def __call__(self, x: Tokens, attend: Attend) -> Tokens:
        """Apply attention and feed-forward."""
        x = x + self.attention(self.attention_norm(x), attend)
        return x + self.feed_forward(self.feed_forward_norm(x))
