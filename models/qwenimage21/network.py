"""Qwen-Image 2.1 transformer: predicts the velocity of latents from a caption and time.

Text and image share one stream, the text first. Text is causal and has timestep 0: it does not
depend on the image or the step. The image attends to all tokens. All blocks share one modulation.

Source: diffusers' QwenImage21Transformer2DModel. Blocks are stacked and scanned
(models/nn/layers/scanned.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import TokenAttention, default_attention, token_attention
from models.nn.blocks.double_stream import (
    AXES,
    ByHead,
    JointHeads,
    StreamShape,
    Tokens,
    Vectors,
    fit_float16,
    padded,
    split_vectors,
)
from models.nn.blocks.feed_forward import SwiGlu
from models.nn.layers import padded_tokens
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation, OffsetRMSNorm, layer_norm
from models.nn.layers.padded_tokens import Positions, join_positions
from models.nn.layers.parameterised import Kinds, activated, from_heads, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.rope import RopeTable, apply_rope, rope_table
from models.nn.layers.scanned import run, stack
from models.nn.layers.step_cache import CachedStep
from models.parallel.placement import split
from models.qwenimage21.config import QwenImage21Config
from models.vae.references import Grid

TIME_FEATURES = 256
"""Width of the timestep's sinusoids; the same in every Qwen-Image 2.1."""
OF_BLOCK = 4
"""Modulation vectors of a block: scale and gate of the attention, then of the feed-forward."""


class TextInput(nnx.Module):
    """Norm and MLP from the text encoder's features to the network's width."""

    def __init__(self, config: QwenImage21Config, **kinds: Unpack[Kinds]) -> None:
        features, width = config.context_in_dim, config.width
        self.norm = OffsetRMSNorm(features, config.eps, axis=None, **kinds)
        self.first = linear(features, width, (None, "mlp"), use_bias=False, **kinds)
        self.second = linear(width, width, ("mlp", "embed"), use_bias=False, **kinds)

    def __call__(self, captions: Float[Array, "batch tokens features"]) -> Tokens:
        """Embed each token."""
        return self.second(activated(self.first, self.norm(captions), tanh_gelu))


class SingleStreamBlock(nnx.Module):
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
        scale, gate, mlp_scale, mlp_gate = by_part(vectors, text_tokens, x.shape[1])
        normed = layer_norm(x, self.epsilon) * (1 + scale)
        attended = self._attended(normed, positions, text_tokens)
        x = x + jnp.tanh(gate) * from_heads(self.out, attended)
        hidden = self.feed_forward(layer_norm(x, self.epsilon) * (1 + mlp_scale))
        return split(fit_float16(x + jnp.tanh(mlp_gate) * hidden), *AXES)

    def attention_input(self, image: Tokens, vectors: Vectors) -> Tokens:
        """Return the image's modulated tokens, as the block's attention reads them."""
        scale = split_vectors(vectors)[OF_BLOCK]
        return layer_norm(image, self.epsilon) * (1 + scale)

    def _attended(self, x: Tokens, positions: Positions, text_tokens: int) -> ByHead:
        """Attend over all tokens; replace the result of the text by causal attention."""
        q, k, v = self.heads(x)
        q, k = (apply_rope(part, positions.rope) for part in (q, k))
        parts = text_tokens, x.shape[1] - text_tokens
        _, image = padded_tokens.cut(self.attention(q, k, v, keys=positions.keys), *parts)
        text = _causal(*(padded_tokens.cut(part, *parts)[0] for part in (q, k, v)))
        return padded_tokens.join([text, image])


class QwenImage21Transformer(nnx.Module):
    """Denoising transformer of Qwen-Image 2.1: latents, captions and time to velocity."""

    def __init__(
        self,
        config: QwenImage21Config,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, channels = config.width, config.in_channels
        feed_forward = partial(SwiGlu, width, config.mlp_ratio * width)
        heads = config.num_attention_heads
        shape = StreamShape(width, heads, feed_forward, use_bias=False, epsilon=config.eps)
        block = partial(SingleStreamBlock, shape, attention, param_dtype=param_dtype)
        self.config = config
        self.latents_in = linear(channels, width, (None, "embed"), use_bias=False, **kinds)
        self.text_in = TextInput(config, **kinds)
        self.time_in = ConditionMLP(TIME_FEATURES, width, use_bias=False, **kinds)
        self.modulation = Modulation(width, OF_BLOCK, use_bias=False, **kinds)
        self.blocks = stack(lambda rngs: block(rngs=rngs), config.num_layers, rngs)
        self.out_modulation = Modulation(width, 1, use_bias=False, **kinds)
        self.latents_out = linear(width, channels, ("embed", None), use_bias=False, **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens channels"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        timestep: Float[Array, " batch"],
        grids: tuple[Grid, ...],
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch image_tokens channels"]:
        """Return the velocity of the latents, towards noise, in the dtype of the weights.

        Args:
            captions: features of the text encoder, padded.
            lengths: tokens of each caption, without padding.
            timestep: 1000 · sigma, 0 to 1000, float32.
            grids: rows and columns of the image's tokens; a single entry.
            cache: state of earlier steps; may replace most blocks.
        """
        dtype = self.latents_in.kernel.dtype
        image, text = self.latents_in(padded(latents, dtype)), self.text_in(padded(captions, dtype))
        positions = self._positions(lengths, captions.shape[1], *grids)
        both, (vectors, out) = padded_tokens.join([text, image]), self._vectors(timestep)
        if cache is None:
            image = self._run(both, vectors, positions, image)
        else:
            image = self._run_cached(cache, both, image, vectors, positions)
        normed = layer_norm(image, self.config.eps) * (1 + out)
        return self.latents_out(normed)[:, : latents.shape[1]]

    def _vectors(
        self, timestep: Float[Array, " batch"]
    ) -> tuple[Vectors, Float[Array, "batch 1 width"]]:
        """Return the modulations of text and image, and the scale of the image's last norm."""
        at, at_zero = (self.time_in(sinusoid(t, TIME_FEATURES)) for t in (timestep, 0 * timestep))
        parts = [self.modulation(at_zero), self.modulation(at)]
        return jnp.concatenate(parts, axis=1), self.out_modulation(at)

    def _positions(self, lengths: Int[Array, " batch"], text_tokens: int, grid: Grid) -> Positions:
        """Return positions of text and image.

        A text token has its place on all axes. Image tokens have the first place after the row's
        text, and row and column counted from the centre.
        """
        (first, *others), axes = self.config.axes_dims_rope, self.config.axes_dims_rope
        tokens = text_tokens + padded_tokens.padding(text_tokens)
        of_text = Positions(
            rope_table(np.repeat(np.arange(tokens)[:, None], 3, axis=1), axes),
            jnp.arange(tokens) < lengths[:, None],
        )
        count = math.prod(grid)
        rows, columns = grid
        ids = grid_ids(rows, columns, first=(rows // 2 - rows, columns // 2 - columns))
        on_grid = rope_table(np.pad(ids, ((0, padded_tokens.padding(count)), (0, 0))), others)
        places = rope_table(np.arange(text_tokens + 1)[:, None], (first,))

        def joined(by_place: Any, by_id: Any) -> Array:
            after_text = jnp.asarray(by_place)[lengths][:, None]
            shape = len(lengths), len(by_id)
            return jnp.concatenate(
                [
                    jnp.broadcast_to(after_text, (*shape, first)),
                    jnp.broadcast_to(by_id, (*shape, by_id.shape[-1])),
                ],
                axis=-1,
            )

        rope = RopeTable(*map(joined, places, on_grid))
        return join_positions([of_text, Positions(rope, padded_tokens.counted(count))])

    def _run(
        self, both: Tokens, vectors: Vectors, at: Positions, image: Tokens, first: int = 0
    ) -> Tokens:
        """Run the blocks from `first` on; return the image's tokens, in number those of `image`."""
        return _image_of(self._blocks_run(both, vectors, at, image, first=first), image)

    def _blocks_run(
        self, both: Tokens, vectors: Vectors, at: Positions, image: Tokens, **some: int
    ) -> Tokens:
        text_tokens = both.shape[1] - image.shape[1]
        return run(self.blocks, both, lambda b, x: b(x, vectors, at, text_tokens), **some)

    def _run_cached(
        self, cache: CachedStep, both: Tokens, image: Tokens, vectors: Vectors, at: Positions
    ) -> Tokens:
        def after_first() -> tuple[Tokens, Tokens]:
            output = self._blocks_run(both, vectors, at, image, stop=1)
            return output, _image_of(output, image)

        def first_input() -> Tokens:
            return run(self.blocks, image, lambda b, x: b.attention_input(x, vectors), stop=1)

        def rest(both: Tokens, others: tuple[Vectors, Positions]) -> Tokens:
            return self._run(both, *others, image, cache.first)

        inputs = cache.before_blocks(both, image, after_first, first_input)
        return cache.run(inputs, (vectors, at), rest)


def by_part(
    vectors: Vectors, text_tokens: int, tokens: int
) -> list[Float[Array, "batch _tokens width"]]:
    """Split modulations of text and image, and repeat each for the tokens of its part."""
    parts = np.zeros(text_tokens, bool), np.ones(tokens - text_tokens, bool)
    is_image: Bool[np.ndarray, "tokens 1"] = padded_tokens.join_host(parts)[:, None]
    of_text, of_image = (split_vectors(half) for half in jnp.split(vectors, 2, axis=1))
    return [jnp.where(is_image, *pair) for pair in zip(of_image, of_text, strict=True)]


def _causal(q: ByHead, k: ByHead, v: ByHead) -> ByHead:
    """Attend from each token to itself and the tokens before it, with all tokens on each device."""
    q, k, v = (split(part, "batch", None, "heads", None) for part in (q, k, v))
    is_visible = np.tri(q.shape[1], dtype=bool)
    bias = np.where(is_visible, np.float32(0), np.finfo(np.float32).min)
    return split(default_attention(q, k, v, jnp.asarray(bias)[None, None]), *AXES, None)


def _image_of(
    both: Float[Array, "batch both width"], image: Float[Array, "batch tokens width"]
) -> Tokens:
    """Extract the image's part from joined tokens; `image` has its shape."""
    text = both.shape[1] - image.shape[1]
    return padded_tokens.cut(both, text, image.shape[1])[1]
