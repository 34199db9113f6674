"""Z-Image transformer: predicts the velocity of packed latents from a caption and time.

Image and text share one stream. Source: Cai et al. 2025 (Z-Image), section 3; diffusers'
ZImageTransformer2DModel for the parametrisation. Blocks are stacked and scanned
(models/nn/layers/scanned.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.nn.attention.attention import TokenAttention, token_attention
from models.nn.blocks.double_stream import AXES, ImageTokens, StreamShape, Tokens, padded
from models.nn.blocks.feed_forward import SwiGlu
from models.nn.blocks.single_stream import SandwichNormBlock, Vector
from models.nn.layers import padded_tokens
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import RMSNorm, layer_norm
from models.nn.layers.padded_tokens import Positions, cut_first, join_positions
from models.nn.layers.parameterised import Kinds, linear
from models.nn.layers.positions import grid_ids
from models.nn.layers.rope import RopeTable, rope_table
from models.nn.layers.row_grids import RowGrids, looked_up
from models.nn.layers.scanned import layers_of, run, stack_any
from models.nn.layers.step_cache import CachedStep
from models.parallel.placement import split
from models.vae.patches import PATCH
from models.vae.references import Grid
from models.zimage.config import ZImageBlocksConfig, ZImageConfig, filled

TIME_FEATURES, TIME_INNER = 256, 1024
"""Width of the timestep's sinusoids, and hidden width of its MLP; the same in every Z-Image."""
HEAD_EPSILON = 1e-5
"""Epsilon of the norms of queries and keys."""


Residuals = Mapping[tuple[int, ...], Float[Array, "batch samples tokens width"]]
"""ControlNet residuals, padded: numbers of the blocks that get one, in order → the residuals."""


class EmbeddedTokens(NamedTuple):
    """Inputs of the blocks for images and of the joint ones."""

    image: Tokens
    text: Tokens
    """Output of the blocks for captions."""
    condition: Vector
    of_image: Positions
    of_text: Positions


def block_of(config: ZImageBlocksConfig, attention: TokenAttention) -> Callable[..., Any]:
    """Return the constructor of a block; with `condition`, of a modulated one."""
    shape = StreamShape(
        config.dim,
        config.n_heads,
        partial(SwiGlu, config.dim, config.inner),
        use_bias=False,
        epsilon=HEAD_EPSILON,
        normed_heads=config.qk_norm,
    )
    return partial(SandwichNormBlock, shape, attention, config.norm_eps)


class ZImageTransformer(nnx.Module):
    """Denoising transformer of Z-Image: packed latents, captions and time to velocity."""

    def __init__(
        self,
        config: ZImageConfig,
        attention: TokenAttention = token_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, patch = config.dim, PATCH**2 * config.in_channels
        block = block_of(config, attention)
        modulated = partial(block, condition=config.condition)
        self.config = config
        self.latents_in = linear(patch, width, (None, "embed"), **kinds)
        self.text_norm = RMSNorm(config.cap_feat_dim, config.norm_eps, **kinds)
        self.text_in = linear(config.cap_feat_dim, width, (None, "embed"), **kinds)
        self.time_in = ConditionMLP(TIME_FEATURES, config.condition, inner=TIME_INNER, **kinds)
        self.image_filling, self.text_filling = (
            nnx.Param(jnp.zeros((1, width), param_dtype), axes=(None, "embed")) for _ in range(2)
        )
        self.image_blocks = stack_any(modulated, config.n_refiner_layers, **kinds)
        self.text_blocks = stack_any(block, config.n_refiner_layers, **kinds)
        self.blocks = stack_any(modulated, config.n_layers, **kinds)
        self.out_modulation = linear(config.condition, width, ("embed", "modulation"), **kinds)
        self.latents_out = linear(width, patch, ("embed", None), **kinds)

    def __call__(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        timestep: Float[Array, " batch"],
        grids: tuple[Grid, ...] | RowGrids,
        cache: CachedStep | None = None,
        residuals: Residuals | None = None,
    ) -> Float[Array, "batch image_tokens patch"]:
        """Return the velocity of the latents, towards noise, in the dtype of the weights.

        Args:
            captions: features of the text encoder, padded.
            lengths: tokens of each caption, without padding.
            timestep: t_scale times 0 (noise) to 1 (image), float32.
            grids: token rows and columns of the image, a single entry; or those of padded rows.
            cache: state of earlier steps; may replace most blocks.
            residuals: residuals of ControlNets for the joint blocks; None: no ControlNets.
        """
        x = self.embedded(latents, captions, lengths, timestep, grids)
        image = run_blocks(self.image_blocks, x.image, x.condition, x.of_image)
        both = padded_tokens.join([image, x.text])
        others = x.condition, join_positions([x.of_image, x.of_text]), residuals
        if cache is None:
            image = cut_first(run_blocks(self.blocks, both, *others), image.shape[1])
        else:
            image = self._run_cached(cache, both, image, *others)
        scale = 1 + self.out_modulation(jax.nn.silu(x.condition))
        velocity = self.latents_out(layer_norm(image, 1e-6) * scale[:, None])
        return -velocity[:, : latents.shape[1]]

    def embedded(
        self,
        latents: Float[Array, "batch image_tokens patch"],
        captions: Float[Array, "batch text_tokens features"],
        lengths: Int[Array, " batch"],
        timestep: Float[Array, " batch"],
        grids: tuple[Grid, ...] | RowGrids,
    ) -> EmbeddedTokens:
        """Embed the inputs, which are those of a call, and refine the captions."""
        condition = self.time_in(sinusoid(timestep, TIME_FEATURES))
        count: int | Array = latents.shape[1]
        if isinstance(grids, RowGrids):
            count = grids.extents.prod(axis=1)[:, None]
        image = filled_tokens(latents, count, self.latents_in, self.image_filling)
        text = filled_tokens(captions, lengths[:, None], self._text_in, self.text_filling)
        padded_lengths = filled(lengths)
        if isinstance(grids, RowGrids):
            of_image = self._row_positions(padded_lengths, text.shape[1], grids)
        else:
            of_image = self._image_positions(padded_lengths, text.shape[1], *grids)
        of_text = self._text_positions(padded_lengths, text.shape[1])
        text = run_blocks(self.text_blocks, text, None, of_text)
        return EmbeddedTokens(image, text, condition, of_image, of_text)

    def _text_in(self, captions: Float[Array, "batch tokens features"]) -> Tokens:
        return self.text_in(self.text_norm(captions))

    def _image_positions(
        self, padded_lengths: Int[Array, " batch"], text_tokens: int, grid: Grid
    ) -> Positions:
        """Return RoPE positions of image tokens after each caption; learned padding is at zero."""
        count = math.prod(grid)
        total = filled(count) + padded_tokens.padding(filled(count))
        ids = np.pad(grid_ids(*grid), ((0, total - count), (0, 0)))
        (first, *others), theta = self.config.axes_dims, self.config.rope_theta
        places = rope_table(np.arange(text_tokens + 2)[:, None], (first,), theta)
        is_image, on_grid = (np.arange(total) < count)[:, None], rope_table(ids, others, theta)

        def joined(by_place: Any, by_id: Any) -> Array:
            table = jnp.asarray(by_place)
            by_sequence = jnp.where(is_image, table[padded_lengths + 1][:, None], table[0])
            shared = jnp.broadcast_to(by_id, (len(padded_lengths), *by_id.shape))
            return jnp.concatenate([by_sequence, shared], axis=-1)

        rope = RopeTable(*map(joined, places, on_grid))
        return Positions(rope, padded_tokens.counted(filled(count)))

    def _row_positions(
        self, padded_lengths: Int[Array, " batch"], text_tokens: int, grids: RowGrids
    ) -> Positions:
        """Return `_image_positions` of padded rows, without keys after the learned tokens."""
        grids = grids._replace(tokens=filled(grids.tokens))
        is_image = padded_tokens.pad(grids.counted)
        places = [padded_lengths[:, None] + 1, *grids.places()]
        on_image = [jnp.where(is_image, place, 0) for place in places]
        span = (0, max(grids.most, text_tokens + 2))
        rope = looked_up(on_image, span, self.config.axes_dims, self.config.rope_theta)
        counts = filled(grids.extents.prod(axis=1))
        return Positions(rope, jnp.arange(is_image.shape[1]) < counts[:, None])

    def _text_positions(self, padded_lengths: Int[Array, " batch"], tokens: int) -> Positions:
        """Return RoPE positions of text from 1 on, with a mask of padding after the learned one."""
        ids = np.pad(np.arange(tokens)[:, None] + 1, ((0, 0), (0, 2)))
        rope = rope_table(ids, self.config.axes_dims, self.config.rope_theta)
        keys = jnp.arange(tokens) < padded_lengths[:, None]
        return Positions(rope, keys)

    def _run_cached(
        self,
        cache: CachedStep,
        both: Tokens,
        image: ImageTokens,
        condition: Vector,
        at: Positions,
        residuals: Residuals | None,
    ) -> ImageTokens:
        def after_first() -> tuple[Tokens, ImageTokens]:
            output = run_blocks(self.blocks, both, condition, at, residuals, stop=1)
            return output, cut_first(output, image.shape[1])

        def first_input() -> Tokens:
            return run(
                self.blocks, image, lambda block, x: block.attention_input(x, condition), stop=1
            )

        def rest(both: Tokens, others: tuple[Vector, Positions, Residuals | None]) -> ImageTokens:
            output = run_blocks(self.blocks, both, *others, first=cache.first)
            return cut_first(output, image.shape[1])

        inputs = cache.before_blocks(both, image, after_first, first_input)
        return cache.run(inputs, (condition, at, residuals), rest)


def filled_tokens(
    x: Float[Array, "batch tokens _in"],
    count: int | Int[Array, "batch 1"],
    into: Callable[[Array], Array],
    filling: nnx.Param[Any],
) -> Float[Array, "batch filled width"]:
    """Embed tokens, and replace those after each row's first `count` by the learned padding."""
    padding = ((0, 0), (0, filled(x.shape[1]) - x.shape[1]), (0, 0))
    tokens = into(padded(jnp.pad(x, padding), filling[...].dtype))
    return jnp.where((jnp.arange(tokens.shape[1]) < count)[..., None], tokens, filling[...])


def run_blocks(
    blocks: nnx.Module | None,
    x: Tokens,
    condition: Vector | None,
    at: Positions,
    residuals: Residuals | None = None,
    **some: int,
) -> Tokens:
    """Run a stack of transformer blocks.

    Args:
        residuals: added to the outputs of some blocks.
        some: selects a range, as in `run`.
    """
    if residuals is None or blocks is None:
        return run(blocks, x, lambda block, x: block(x, condition, at), **some)
    layers = layers_of(blocks)
    indices = [_indices(places, layers) for places in residuals]

    def apply(block: SandwichNormBlock, x: Tokens, *indices: Array) -> Tokens:
        x = block(x, condition, at)
        for index, samples in zip(indices, residuals.values(), strict=True):
            added = jax.lax.dynamic_index_in_dim(samples, jnp.maximum(index, 0), 1, keepdims=False)
            x = x + jnp.where(index < 0, 0, added.astype(x.dtype))
        return split(x, *AXES)

    return run(blocks, x, apply, *indices, **some)


def _indices(places: tuple[int, ...], layers: int) -> Int[Array, " layers"]:
    """Return the index of each layer's residual; -1: the layer gets none."""
    return jnp.asarray([places.index(layer) if layer in places else -1 for layer in range(layers)])
