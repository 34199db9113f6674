"""Blocks on one stream of text and image, in which the text is causal (Qwen-Image 2.1).

A text token attends to itself and the tokens before it, an image token to all tokens.

Source: diffusers' QwenImage21TransformerBlock.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import TokenAttention, default_attention
from models.nn.blocks.double_stream import (
    AXES,
    ByHead,
    JointHeads,
    StreamShape,
    Tokens,
    Vectors,
    fit_float16,
    split_vectors,
)
from models.nn.layers import padded_tokens
from models.nn.layers.norms import layer_norm
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, from_heads, linear
from models.nn.layers.rope import apply_rope
from models.parallel.placement import split

VECTORS = 4
"""Modulation vectors of a block: scale and gate of the attention, then of the feed-forward."""


class CausalTextBlock(nnx.Module):
    """Attention and gated feed-forward on the joint stream, with causal text."""

    def __init__(
        self, shape: StreamShape, attention: TokenAttention, **kinds: Unpack[Kinds]
    ) -> None:
        width, self.epsilon = shape.width, shape.epsilon
        self.heads, self.attention = JointHeads(shape, **kinds), attention
        self.out = linear(width, width, ("heads", "embed"), use_bias=False, **kinds)
        self.feed_forward = shape.feed_forward(**kinds)

    def __call__(
        self, x: Tokens, vectors: Vectors, positions: Positions, text_tokens: int
    ) -> Tokens:
        """Apply attention and feed-forward.

        Args:
            vectors: modulations of the text, then of the image.
            text_tokens: number of text tokens, padding included.
        """
        scale, gate, mlp_scale, mlp_gate = _by_part(vectors, text_tokens, x.shape[1])
        normed = layer_norm(x, self.epsilon) * (1 + scale)
        attended = self._attended(normed, positions, text_tokens)
        x = x + jnp.tanh(gate) * from_heads(self.out, attended)
        hidden = self.feed_forward(layer_norm(x, self.epsilon) * (1 + mlp_scale))
        return split(fit_float16(x + jnp.tanh(mlp_gate) * hidden), *AXES)

    def attention_input(self, image: Tokens, vectors: Vectors) -> Tokens:
        """Return the image's modulated tokens, as the block's attention reads them."""
        scale = split_vectors(vectors)[VECTORS]
        return layer_norm(image, self.epsilon) * (1 + scale)

    def _attended(self, x: Tokens, positions: Positions, text_tokens: int) -> ByHead:
        """Attend over all tokens; replace the result of the text by causal attention."""
        q, k, v = self.heads(x)
        q, k = (apply_rope(part, positions.rope) for part in (q, k))
        parts = text_tokens, x.shape[1] - text_tokens
        _, image = padded_tokens.cut(self.attention(q, k, v, keys=positions.keys), *parts)
        text = _causal(*(padded_tokens.cut(part, *parts)[0] for part in (q, k, v)))
        return padded_tokens.join([text, image])


def image_of(both: Tokens, text_tokens: int) -> Float[Array, "batch _image width"]:
    """Extract the image's part from joined tokens."""
    return padded_tokens.cut(both, text_tokens, both.shape[1] - text_tokens)[1]


def _by_part(
    vectors: Vectors, text_tokens: int, tokens: int
) -> list[Float[Array, "batch _tokens width"]]:
    """Split modulations of text and image, and repeat each for the tokens of its part."""
    parts = np.zeros(text_tokens, bool), np.ones(tokens - text_tokens, bool)
    is_image: Bool[np.ndarray, "tokens 1"] = padded_tokens.join_host(parts)[:, None]
    of_text, of_image = (split_vectors(half) for half in jnp.split(vectors, 2, axis=1))
    return [jnp.where(is_image, *pair) for pair in zip(of_image, of_text, strict=True)]


def _causal(q: ByHead, k: ByHead, v: ByHead) -> ByHead:
    """Attend from each token to itself and the tokens before it, with all tokens on each device."""
    batch, tokens, _ = AXES
    q, k, v = (split(part, batch, None, "heads", None) for part in (q, k, v))
    is_visible = np.tri(q.shape[1], dtype=bool)
    bias = np.where(is_visible, np.float32(0), np.finfo(np.float32).min)
    return split(
        default_attention(q, k, v, jnp.asarray(bias)[None, None]), batch, tokens, "heads", None
    )
