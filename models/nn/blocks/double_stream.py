"""Double-stream blocks: image and text have separate layers, joined by one attention.

Source: Esser et al. 2024 (MM-DiT), section 4; diffusers' transformer_flux.py and
transformer_flux2.py for the parametrisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import TokenAttention
from models.nn.layers import padded_tokens
from models.nn.layers.norms import RMSNorm, modulate
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import Kinds, from_heads, linear, to_heads
from models.nn.layers.rope import apply_rope, rope_table
from models.parallel.placement import split

Tokens = Float[Array, "batch tokens width"]
ImageTokens = Float[Array, "batch image_tokens width"]
"""Tokens of the image alone, where `Tokens` are those of text and image."""
ByHead = Float[Array, "batch tokens heads dim"]
Vectors = Float[Array, "batch _vectors width"]
"""Modulations of one layer."""
Streams = tuple[Float[Array, "batch image_tokens width"], Float[Array, "batch text_tokens width"]]

AXES = ("batch", "tokens", None)


@dataclass(frozen=True)
class StreamShape:
    """Widths and options of a stream's layers."""

    width: int
    heads: int
    feed_forward: Callable[..., nnx.Module]
    """Function that builds the feed-forward from `rngs` and `param_dtype`."""
    use_bias: bool = True
    epsilon: float = 1e-6
    """Epsilon of the norms."""
    normed_heads: bool = True
    """Whether queries and keys are normalized by head."""


class JointHeads(nnx.Module):
    """Projections of one stream to queries, keys and values, with optional norms by head."""

    def __init__(self, shape: StreamShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        width, axes = shape.width, ("embed", "heads")
        project = partial(linear, width, width, axes, use_bias=shape.use_bias)
        norm = partial(RMSNorm, width // shape.heads, shape.epsilon)
        self.q, self.k, self.v = (project(rngs=rngs, param_dtype=param_dtype) for _ in "qkv")
        self.q_norm, self.k_norm = (
            norm(rngs=rngs, param_dtype=param_dtype) if shape.normed_heads else None for _ in "qk"
        )
        self.heads = shape.heads

    def __call__(self, x: Tokens) -> tuple[Array, Array, Array]:
        """Project tokens to queries, keys and values."""
        q, k = (to_heads(project, x, self.heads) for project in (self.q, self.k))
        v = to_heads(self.v, x, self.heads, tokens_last=True)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def attended(self, x: Tokens, attention: TokenAttention, positions: Positions) -> ByHead:
        """Attend among the tokens of this stream alone."""
        q, k, v = self(x)
        q, k = (apply_rope(part, positions.rope) for part in (q, k))
        return attention(q, k, v, keys=positions.keys)


class Stream(nnx.Module):
    """Layers of one stream of a double block: all but the attention that both streams share."""

    def __init__(self, shape: StreamShape, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, axes = shape.width, ("heads", "embed")
        self.epsilon = shape.epsilon
        self.attention = JointHeads(shape, **kinds)
        self.out = linear(width, width, axes, use_bias=shape.use_bias, **kinds)
        self.feed_forward = shape.feed_forward(**kinds)

    def attention_inputs(self, x: Tokens, modulation: list[Array]) -> Tokens:
        """Return the stream's normalized and modulated tokens, the input of its attention."""
        shift, scale, *_ = modulation
        return modulate(x, shift, scale, self.epsilon)

    def finish(self, x: Tokens, attended: ByHead, modulation: list[Array]) -> Tokens:
        """Add the attention's output and the feed-forward's output to the stream."""
        _, _, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        x = x + gate * from_heads(self.out, attended)
        normed = modulate(x, mlp_shift, mlp_scale, self.epsilon)
        return split(fit_float16(x + mlp_gate * self.feed_forward(normed)), *AXES)


class DoubleBlock(nnx.Module):
    """Transformer block with separate image and text streams, joined by one attention."""

    def __init__(
        self,
        shape: StreamShape,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        self.image = Stream(shape, rngs=rngs, param_dtype=param_dtype)
        self.text = Stream(shape, rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(
        self, streams: Streams, of_image: Vectors, of_text: Vectors, positions: Positions
    ) -> Streams:
        """Attend over both streams together, then finish each stream with its own layers."""
        image, text = streams
        image_mod = split_by_token_group(of_image, image.shape[1], positions.generated_tokens)
        text_mod = split_vectors(of_text)
        image_qkv = self.image.attention(self.image.attention_inputs(image, image_mod))
        text_qkv = self.text.attention(self.text.attention_inputs(text, text_mod))
        q, k, v = (padded_tokens.join(pair) for pair in zip(text_qkv, image_qkv, strict=True))
        q, k = (apply_rope(x, positions.rope) for x in (q, k))
        attended = self.attention(q, k, v, keys=positions.keys)
        text_out, image_out = padded_tokens.cut(attended, text.shape[1], image.shape[1])
        return (
            self.image.finish(image, image_out, image_mod),
            self.text.finish(text, text_out, text_mod),
        )

    def attention_inputs(self, image: Tokens, of_image: Vectors, positions: Positions) -> Tokens:
        """Return the modulated image tokens, as the block's attention reads them."""
        return self.image.attention_inputs(
            image, split_by_token_group(of_image, image.shape[1], positions.generated_tokens)
        )


def split_vectors(vectors: Vectors) -> list[Float[Array, "batch 1 width"]]:
    """Split modulations into separate vectors, each with an axis to broadcast over tokens."""
    return jnp.split(vectors, vectors.shape[1], axis=1)


def split_by_token_group(
    vectors: Vectors, tokens: int, generated_tokens: int | None
) -> list[Float[Array, "batch _tokens width"]]:
    """Split modulations whose first half is for the first tokens, the second for others.

    Args:
        generated_tokens: number of tokens of the first half; None: all vectors are for all tokens.
    """
    if generated_tokens is None:
        return split_vectors(vectors)
    is_drawn = (np.arange(tokens) < generated_tokens)[:, None]
    halves = (split_vectors(half) for half in jnp.split(vectors, 2, axis=1))
    return [jnp.where(is_drawn, first, other) for first, other in zip(*halves, strict=True)]


def fit_float16(x: Tokens) -> Tokens:
    """Clip float16 activations of the residual stream, which would overflow to infinity."""
    return jnp.clip(x, -65504, 65504) if x.dtype == jnp.float16 else x


def padded(x: Tokens, dtype: DTypeLike) -> Float[Array, "batch _padded width"]:
    """Cast tokens, pad them to equal shares per device, and split them by the layout."""
    return split(padded_tokens.pad(x.astype(dtype)), *AXES)


def joined_positions(
    ids: tuple[np.ndarray, ...], axes_dims: tuple[int, ...], theta: float = 10_000.0
) -> Positions:
    """Return the RoPE table and the key mask of joined token sequences.

    Args:
        ids: positions of each part, [tokens, axes], in the order in which parts are joined.
    """
    padded = [np.pad(part, ((0, padded_tokens.padding(len(part))), (0, 0))) for part in ids]
    rope = rope_table(padded_tokens.join_host(padded), axes_dims, theta)
    return Positions(rope, padded_tokens.counted(*map(len, ids)))


def keys_of_rows(
    text: Bool[Array, "batch text_tokens"], image_tokens: int
) -> Bool[Array, "batch all"]:
    """Return each row's key mask: its text mask, and all image tokens."""
    image = jnp.ones((len(text), image_tokens), bool)
    return padded_tokens.join([padded_tokens.pad(text), padded_tokens.pad(image)])
