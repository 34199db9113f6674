"""Blocks of one stream of text and image, whose attention and feed-forward lie side by side.

Source: Dehghani et al. 2023 (ViT-22B), section 2.1; diffusers' transformer_flux.py and
transformer_flux2.py for the parametrisation.
"""

from __future__ import annotations

from collections.abc import Callable

from flax import nnx
from jax.typing import DTypeLike

from models.nn.attention.attention import TokenAttention
from models.nn.blocks.double_stream import (
    AXES,
    JointHeads,
    StreamShape,
    Tokens,
    Vectors,
    fit_float16,
    one_by_one,
)
from models.nn.layers.norms import modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, linear, of_joined
from models.parallel.placement import split


class SingleBlock(nnx.Module):
    """Attention and feed-forward side by side on one stream of text and image."""

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
        """Build it.

        Args:
            middle: make the middle of the feed-forward, of the width, `inner`, `use_bias`, and as
                of every layer.
            inner: features there.
        """
        width, kinds = shape.width, Kinds(rngs=rngs, param_dtype=param_dtype)
        self.epsilon, self.attention = shape.epsilon, attention
        self.heads = JointHeads(shape, **kinds)
        self.middle = middle(width, inner, use_bias=shape.use_bias, **kinds)
        axes = ("mlp", "embed")
        self.down = linear(width + inner, width, axes, use_bias=shape.use_bias, **kinds)

    def __call__(self, x: Tokens, vectors: Vectors, positions: Positions) -> Tokens:
        """Attend and feed forward side by side, over the joined streams."""
        shift, scale, gate = one_by_one(vectors)
        normed = modulate(x, shift, scale, self.epsilon)
        attended = self.heads.attended(normed, self.attention, positions)
        found = of_joined(self.down, [attended, self.middle(normed)])
        return split(fit_float16(x + gate * found), *AXES)
