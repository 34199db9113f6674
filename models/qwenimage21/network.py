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
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.causal_text import VECTORS, CausalTextBlock, image_of
from models.nn.blocks.double_stream import StreamShape, Tokens, Vectors, padded
from models.nn.blocks.feed_forward import SwiGlu
from models.nn.layers import padded_tokens
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import Modulation, OffsetRMSNorm, layer_norm
from models.nn.layers.padded_tokens import Positions, join_positions
from models.nn.layers.parameterised import Kinds, activated, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.rope import RopeTable, rope_table
from models.nn.layers.scanned import run, stack
from models.nn.layers.step_cache import CachedStep
from models.qwenimage21.config import QwenImage21Config
from models.vae.references import Grid

TIME_FEATURES = 256
"""Width of the timestep's sinusoids; the same in every Qwen-Image 2.1."""


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
        block = partial(CausalTextBlock, shape, attention)
        self.config = config
        self.latents_in = linear(channels, width, (None, "embed"), use_bias=False, **kinds)
        self.text_in = TextInput(config, **kinds)
        self.time_in = ConditionMLP(TIME_FEATURES, width, use_bias=False, **kinds)
        self.modulation = Modulation(width, VECTORS, use_bias=False, **kinds)
        self.blocks = stack(block, config.num_layers, **kinds)
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
            image = image_of(self._run(both, vectors, positions, text.shape[1]), text.shape[1])
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
        self, both: Tokens, vectors: Vectors, at: Positions, text_tokens: int, **some: int
    ) -> Tokens:
        """Run the blocks; `some` selects a range, as in `run`."""
        return run(self.blocks, both, lambda b, x: b(x, vectors, at, text_tokens), **some)

    def _run_cached(
        self,
        cache: CachedStep,
        both: Float[Array, "batch both width"],
        image: Float[Array, "batch image width"],
        vectors: Vectors,
        at: Positions,
    ) -> Float[Array, "batch image width"]:
        text_tokens = both.shape[1] - image.shape[1]

        def after_first() -> tuple[Tokens, Tokens]:
            output = self._run(both, vectors, at, text_tokens, stop=1)
            return output, image_of(output, text_tokens)

        def first_input() -> Tokens:
            return run(self.blocks, image, lambda b, x: b.attention_input(x, vectors), stop=1)

        def rest(both: Tokens, others: tuple[Vectors, Positions]) -> Tokens:
            return image_of(self._run(both, *others, text_tokens, first=cache.first), text_tokens)

        inputs = cache.before_blocks(both, image, after_first, first_input)
        return cache.run(inputs, (vectors, at), rest)
