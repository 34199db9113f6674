"""Single-stream blocks of joined text and image tokens, with parallel attention and feed-forward.

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
    split_vectors,
)
from models.nn.layers.norms import modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, linear, linear_concatenated
from models.parallel.placement import split


class SingleBlock(nnx.Module):
    """Transformer block with parallel attention and feed-forward on one joined stream."""

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
        """Create the layers.

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
        """Attend and feed forward in parallel, over the joined streams."""
        shift, scale, gate = split_vectors(vectors)
        normed = modulate(x, shift, scale, self.epsilon)
        attended = self.heads.attended(normed, self.attention, positions)
        output = linear_concatenated(self.down, [attended, self.middle(normed)])
        return split(fit_float16(x + gate * output), *AXES)
