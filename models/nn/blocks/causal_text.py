"""Blocks on one stream of a prefix and an image, in which the prefix is causal (Qwen-Image 2.1).

A token of the prefix's text attends to itself and the tokens before it, one of an image in the
prefix to that image and the tokens before it. A token of the generated image attends to all.

Source: diffusers' QwenImage21TransformerBlock.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import (
    TokenAttention,
    cross_attention,
    default_attention,
)
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


class Segment(NamedTuple):
    """Part of a sequence's prefix: text, or an image."""

    first: int
    end: int
    is_image: bool


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
        self, x: Tokens, vectors: Vectors, positions: Positions, prefix: tuple[Segment, ...]
    ) -> Tokens:
        """Apply attention and feed-forward to text and image tokens.

        Args:
            vectors: modulations of the prefix, then of the image.
            prefix: parts of the prefix in order, padding included.
        """
        scale, gate, mlp_scale, mlp_gate = _by_part(vectors, prefix[-1].end, x.shape[1])
        normed = layer_norm(x, self.epsilon) * (1 + scale)
        attended = self._attended(normed, positions, prefix)
        x = x + jnp.tanh(gate) * from_heads(self.out, attended)
        hidden = self.feed_forward(layer_norm(x, self.epsilon) * (1 + mlp_scale))
        return split(fit_float16(x + jnp.tanh(mlp_gate) * hidden), *AXES)

    def attention_input(self, image: Tokens, vectors: Vectors) -> Tokens:
        """Return the image's modulated tokens, as the block's attention reads them."""
        scale = split_vectors(vectors)[VECTORS]
        return layer_norm(image, self.epsilon) * (1 + scale)

    def _attended(self, x: Tokens, positions: Positions, prefix: tuple[Segment, ...]) -> ByHead:
        """Attend over all tokens, then replace the prefix's output by that of causal attention."""
        q, k, v = self.heads(x)
        q, k = (apply_rope(part, positions.rope) for part in (q, k))
        parts = prefix[-1].end, x.shape[1] - prefix[-1].end
        _, image = padded_tokens.cut(self.attention(q, k, v, keys=positions.keys), *parts)
        before = _causal(prefix, *(padded_tokens.cut(part, *parts)[0] for part in (q, k, v)))
        return padded_tokens.join([before, image])


def _by_part(
    vectors: Vectors, text_tokens: int, tokens: int
) -> list[Float[Array, "batch _tokens width"]]:
    """Split the modulations of text and image, and repeat each for the tokens of its part."""
    parts = np.zeros(text_tokens, bool), np.ones(tokens - text_tokens, bool)
    is_image: Bool[np.ndarray, "tokens 1"] = padded_tokens.join_host(parts)[:, None]
    of_text, of_image = (split_vectors(half) for half in jnp.split(vectors, 2, axis=1))
    return [jnp.where(is_image, *pair) for pair in zip(of_image, of_text, strict=True)]


def _causal(prefix: tuple[Segment, ...], q: ByHead, k: ByHead, v: ByHead) -> ByHead:
    """Attend causally in the prefix, but from each token of an image to the entire image.

    Each device has all tokens of the prefix.
    """
    batch, tokens, _ = AXES
    q, k, v = (split(part, batch, None, "heads", None) for part in (q, k, v))
    attended = []
    for first, end, is_image in prefix:
        part = q[:, first:end], k[:, :end], v[:, :end]
        is_visible = np.tri(end - first, end, first, dtype=bool)
        bias = np.where(is_visible, np.float32(0), np.finfo(np.float32).min)[None, None]
        attended.append(
            cross_attention(*part) if is_image else default_attention(*part, jnp.asarray(bias))
        )
    return split(jnp.concatenate(attended, axis=1), batch, tokens, "heads", None)
