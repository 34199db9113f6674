"""Single-stream blocks of joined text and image tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Unpack

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import TokenAttention
from models.nn.blocks.double_stream import (
    AXES,
    JointHeads,
    StreamShape,
    Tokens,
    Vectors,
    fit_float16,
    split_vectors,
)
from models.nn.layers.norms import RMSNorm, linear_with_exact_activations, modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, from_heads, linear, linear_concatenated
from models.parallel.placement import split

Vector = Float[Array, "batch condition"]


class SingleBlock(nnx.Module):
    """Transformer block with parallel attention and feed-forward on one joined stream.

    Source: Dehghani et al. 2023 (ViT-22B), section 2.1; diffusers' transformer_flux.py and
    transformer_flux2.py for the parametrisation.
    """

    def __init__(
        self,
        middle: Callable[..., nnx.Module],
        inner: int,
        shape: StreamShape,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        """Create the layers of the block.

        Args:
            middle: builds the middle of the feed-forward from the width, `inner`, `use_bias` and
                the arguments of every layer.
            inner: features of the middle.
        """
        width, kinds = shape.width, Kinds(rngs=rngs, param_dtype=param_dtype)
        self.epsilon, self.attention = shape.epsilon, attention
        self.heads = JointHeads(shape, **kinds)
        self.middle = middle(width, inner, use_bias=shape.use_bias, **kinds)
        axes = ("mlp", "embed")
        self.down = linear(width + inner, width, axes, use_bias=shape.use_bias, **kinds)

    def __call__(self, x: Tokens, vectors: Vectors, positions: Positions) -> Tokens:
        """Apply attention and feed-forward in parallel to the joined streams."""
        shift, scale, gate = split_vectors(vectors)
        normed = modulate(x, shift, scale, self.epsilon)
        attended = self.heads.attended(normed, self.attention, positions)
        output = linear_concatenated(self.down, [attended, self.middle(normed)])
        return split(fit_float16(x + gate * output), *AXES)


class SandwichNormBlock(nnx.Module):
    """Transformer block with norms before and after its attention, and its gated feed-forward.

    Source: diffusers' transformer_z_image.py.
    """

    def __init__(
        self,
        shape: StreamShape,
        attention: TokenAttention,
        epsilon: float,
        *,
        condition: int | None = None,
        **kinds: Unpack[Kinds],
    ) -> None:
        """Create the layers of the block.

        Args:
            epsilon: epsilon of the stream's norms; `shape` has that of the heads'.
            condition: features of the vector that modulates the block; None: not modulated.
        """
        width, norm = shape.width, partial(RMSNorm, shape.width, epsilon, **kinds)
        self.heads, self.attention = JointHeads(shape, **kinds), attention
        self.out = linear(width, width, ("heads", "embed"), use_bias=shape.use_bias, **kinds)
        self.feed_forward = shape.feed_forward(**kinds)
        self.attention_in, self.attention_out = norm(), norm()
        self.feed_forward_in, self.feed_forward_out = norm(), norm()
        axes = ("embed", "modulation")
        self.modulation = None if condition is None else linear(condition, 4 * width, axes, **kinds)

    def __call__(self, x: Tokens, condition: Vector | None, positions: Positions) -> Tokens:
        """Apply attention and the feed-forward to the joint stream."""
        scale, gate, mlp_scale, mlp_gate = self._modulations(condition)
        attended = self.heads.attended(self.attention_in(x) * scale, self.attention, positions)
        x = x + gate * self.attention_out(from_heads(self.out, attended))
        hidden = self.feed_forward(self.feed_forward_in(x) * mlp_scale)
        return split(x + mlp_gate * self.feed_forward_out(hidden), *AXES)

    def attention_input(self, x: Tokens, condition: Vector) -> Tokens:
        """Return the modulated input of the block's attention."""
        return self.attention_in(x) * self._modulations(condition)[0]

    def _modulations(self, condition: Vector | None) -> tuple[Array | float, ...]:
        """Return scale and gate of the attention, then of the feed-forward."""
        if self.modulation is None or condition is None:
            return 1.0, 1.0, 1.0, 1.0
        vectors = linear_with_exact_activations(self.modulation, condition)
        scale, gate, mlp_scale, mlp_gate = jnp.split(vectors[:, None], 4, axis=-1)
        return 1 + scale, jnp.tanh(gate), 1 + mlp_scale, jnp.tanh(mlp_gate)
