"""Qwen-Image 2.1 transformer: predicts the velocity of latents from a caption and time.

Text and image share one stream. Before the image is its prefix: the text, with references in it.
The prefix is causal and has timestep 0: it does not depend on the image or the step. The image
attends to all tokens. All blocks share one modulation.

Source: diffusers' QwenImage21Transformer2DModel. Blocks are stacked and scanned
(models/nn/layers/scanned.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.causal_text import VECTORS, CausalTextBlock, Segment
from models.nn.blocks.double_stream import ImageTokens, StreamShape, Tokens, Vectors, padded
from models.nn.blocks.feed_forward import SwiGlu
from models.nn.layers import padded_tokens
from models.nn.layers.embeddings import ConditionMLP, TextInput, sinusoid
from models.nn.layers.norms import Modulation, layer_norm
from models.nn.layers.padded_tokens import Positions, cut_last, join_positions
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.rope import RopeTable, rope_table
from models.nn.layers.scanned import run, stack
from models.nn.layers.step_cache import CachedStep
from models.qwenimage21.config import QwenImage21Config
from models.vae.references import Grid

SLOT = 4
"""Tokens of a reference that replace one of the caption's: two by two."""
TIME_FEATURES = 256
"""Width of the timestep's sinusoids; the same in every Qwen-Image 2.1."""


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
        self.text_in = TextInput(config.context_in_dim, width, config.eps, use_bias=False, **kinds)
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
        places: tuple[int, ...] = (),
    ) -> Float[Array, "batch _tokens channels"]:
        """Return the velocity of the latents, towards noise, in the dtype of the weights.

        Args:
            captions: features of the text encoder, padded.
            lengths: tokens of each caption, without padding.
            timestep: 1000 · sigma, 0 to 1000, float32.
            grids: rows and columns of tokens, of the image and then of each reference.
            cache: state of earlier steps; may replace most blocks.
            places: number of the caption's tokens before each reference's. A reference replaces a
                quarter as many tokens of the caption as it has.
        """
        dtype = self.latents_in.kernel.dtype
        count, *counts = map(math.prod, grids)
        image = self.latents_in(padded(latents[:, :count], dtype))
        references = self.latents_in(latents[:, count:].astype(dtype))
        words, segments = self.text_in(captions.astype(dtype)), _segments(captions, grids, places)
        text = padded(_inserted(words, references, counts, places), dtype)
        last = segments[-1]._replace(end=text.shape[1])
        prefix = (*segments[:-1], last)
        positions = self._positions(lengths, text.shape[1], prefix, grids)
        both, (vectors, out) = padded_tokens.join([text, image]), self._vectors(timestep)
        if cache is None:
            image = cut_last(self._run(both, vectors, positions, prefix), image.shape[1])
        else:
            image = self._run_cached(cache, both, image, vectors, positions, prefix)
        return self.latents_out(layer_norm(image, self.config.eps) * (1 + out))[:, :count]

    def _vectors(
        self, timestep: Float[Array, " batch"]
    ) -> tuple[Vectors, Float[Array, "batch 1 width"]]:
        """Return the modulations of text and image, and the scale of the image's last norm."""
        at, at_zero = (self.time_in(sinusoid(t, TIME_FEATURES)) for t in (timestep, 0 * timestep))
        parts = [self.modulation(at_zero), self.modulation(at)]
        return jnp.concatenate(parts, axis=1), self.out_modulation(at)

    def _positions(
        self,
        lengths: Int[Array, " batch"],
        tokens: int,
        prefix: tuple[Segment, ...],
        grids: tuple[Grid, ...],
    ) -> Positions:
        """Return the RoPE positions of prefix and image.

        A text token has its place on all axes. Tokens of an image have the next place, and row and
        column counted from the centre; the text after it continues from its longer side.
        """
        (first, *others), axes = self.config.axes_dims_rope, self.config.axes_dims_rope
        image, *references = grids
        parts, place, shift = [], 0, 0
        sizes = iter(references)
        for start, end, is_image in prefix:
            if is_image:
                grid = next(sizes)
                parts.append(_ids(grid, place))
                place += max(grid)
                shift += max(grid) - (end - start) // SLOT
            else:
                parts.append(np.repeat(place + np.arange(end - start)[:, None], 3, axis=1))
                place += end - start
        added = sum(math.prod(grid) - math.prod(grid) // SLOT for grid in references)
        of_text = Positions(
            rope_table(np.concatenate(parts), axes),
            jnp.arange(tokens) < lengths[:, None] + added,
        )
        count = math.prod(image)
        padding = ((0, padded_tokens.padding(count)), (0, 0))
        on_grid = rope_table(np.pad(_ids(image, 0)[:, 1:], padding), others)
        places = rope_table(np.arange(place + 1)[:, None], (first,))

        def joined(by_place: Any, by_id: Any) -> Array:
            after_text = jnp.asarray(by_place)[lengths + shift][:, None]
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
        self,
        both: Tokens,
        vectors: Vectors,
        at: Positions,
        prefix: tuple[Segment, ...],
        **some: int,
    ) -> Tokens:
        """Run the transformer blocks over prefix and image; `some` selects a range, as in `run`."""
        return run(self.blocks, both, lambda b, x: b(x, vectors, at, prefix), **some)

    def _run_cached(
        self,
        cache: CachedStep,
        both: Tokens,
        image: ImageTokens,
        vectors: Vectors,
        at: Positions,
        prefix: tuple[Segment, ...],
    ) -> ImageTokens:
        tokens = image.shape[1]

        def after_first() -> tuple[Tokens, ImageTokens]:
            output = self._run(both, vectors, at, prefix, stop=1)
            return output, cut_last(output, tokens)

        def first_input() -> Tokens:
            return run(self.blocks, image, lambda b, x: b.attention_input(x, vectors), stop=1)

        def rest(both: Tokens, others: tuple[Vectors, Positions]) -> ImageTokens:
            return cut_last(self._run(both, *others, prefix, first=cache.first), tokens)

        inputs = cache.before_blocks(both, image, after_first, first_input)
        return cache.run(inputs, (vectors, at), rest)


def _segments(
    captions: Float[Array, "batch tokens features"],
    grids: tuple[Grid, ...],
    places: tuple[int, ...],
) -> list[Segment]:
    """Return the segments of the prefix without padding: text, and each reference image in it."""
    segments, end, read = [], 0, 0
    for grid, place in zip(grids[1:], places, strict=True):
        count = math.prod(grid)
        after_text = end + place - read
        segments += [Segment(end, after_text, False), Segment(after_text, after_text + count, True)]
        end, read = after_text + count, place + count // SLOT
    return [*segments, Segment(end, end + captions.shape[1] - read, False)]


def _inserted(
    words: Float[Array, "batch words width"],
    references: Float[Array, "batch tokens width"],
    counts: list[int],
    places: tuple[int, ...],
) -> Float[Array, "batch prefix width"]:
    """Replace the caption's tokens of each reference image by the latents' tokens."""
    parts, read, used = [], 0, 0
    for count, place in zip(counts, places, strict=True):
        parts += [words[:, read:place], references[:, used : used + count]]
        read, used = place + count // SLOT, used + count
    return jnp.concatenate([*parts, words[:, read:]], axis=1)


def _ids(grid: Grid, place: int) -> np.ndarray:
    """Return the RoPE positions of an image's tokens, [tokens, 3]."""
    rows, columns = grid
    middle = rows // 2 - rows, columns // 2 - columns
    return grid_ids(rows, columns, before=(place,), first=middle)
