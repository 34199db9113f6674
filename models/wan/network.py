"""Wan transformer: predicts the velocity of video latents from text, time and optionally an image.

Source: Wan Team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models", section 4.2, in
the parametrisation of diffusers' WanTransformer3DModel. Blocks are stacked and scanned
(models/nn/layers/scanned.py). As in diffusers, norms, time embedding, modulations and gated
residuals are computed in float32 for every weight dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import CrossAttention as Crossing
from models.nn.attention.attention import TokenAttention, cross_attention, token_attention
from models.nn.layers import padded_tokens
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.convolution import convolved
from models.nn.layers.embeddings import ConditionMLP, sinusoid
from models.nn.layers.norms import LayerNorm, RMSNorm
from models.nn.layers.padded_tokens import Positions
from models.nn.layers.parameterised import (
    Conv,
    Kinds,
    activated,
    conv,
    from_heads,
    linear,
    to_heads,
)
from models.nn.layers.rope import RopeTable, apply_rope, grid_rope_table
from models.nn.layers.row_grids import RowGrids
from models.nn.layers.scanned import scan, stack
from models.nn.layers.step_cache import BlockInputs, CachedStep
from models.parallel.placement import split
from models.wan.config import WanConfig
from models.wan.modulation import gated, modulate, modulation, modulation_table

Tokens = Float[Array, "batch tokens width"]
Video = Float[Array, "batch frames rows columns channels"]
Activation = Callable[[Array], Array]

erf_gelu: Activation = partial(jax.nn.gelu, approximate=False)

AXES = ("frames", "rows", "columns")
SPLIT = ("batch", "tokens", None)
"""Axes of the video tokens that a layout may split."""
TEXT_TOKENS = 512
"""Number of context tokens, from the end, that diffusers treats as text if images have separate
keys and values. With another text length, it misclassifies some text or image tokens."""
IMAGE_NORM_EPSILON = 1e-5
"""Epsilon of the image embedding's norms; the same in every Wan."""


class BlockContext(NamedTuple):
    """Inputs of every block in addition to the video tokens and their positions."""

    context: Float[Array, "batch context_tokens width"]
    condition: Float[Array, "batch times 6 width"]


class EmbeddedStep(NamedTuple):
    """Embedded inputs of a step, as passed to the blocks."""

    x: Tokens
    """Video tokens, padded to divide evenly over devices."""
    time: Float[Array, "batch times width"]
    context: BlockContext
    positions: Positions
    grid: tuple[int, ...]
    """Frames, rows and columns of tokens, without padding."""


class WanFeedForward(nnx.Module):
    """Feed-forward network: linear, activation, linear."""

    def __init__(
        self,
        sizes: tuple[int, int, int],
        activation: Activation,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        features, hidden, out = sizes
        make = partial(linear, rngs=rngs, param_dtype=param_dtype)
        self.up, self.down = (
            make(features, hidden, ("embed", "mlp")),
            make(hidden, out, ("mlp", "embed")),
        )
        self.activation = activation

    def __call__(self, x: Float[Array, "batch tokens in"]) -> Tokens:
        """Apply the feed-forward network to each token."""
        return self.down(activated(self.up, x, self.activation))


class KeysValues(nnx.Module):
    """Key and value projections of one sequence; keys are normalized over all heads."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        make = partial(linear, rngs=rngs, param_dtype=param_dtype)
        self.k = make(config.width, config.width, ("embed", "heads"))
        self.v = make(config.width, config.width, ("embed", "heads"))
        self.k_norm = RMSNorm(config.width, config.eps, rngs=rngs, param_dtype=param_dtype)
        self.heads = config.num_attention_heads

    def __call__(self, x: Tokens) -> tuple[Array, Array]:
        """Project tokens to normalized keys, and values."""
        keys = self.k_norm.over_heads(to_heads(self.k, x, self.heads))
        return keys, to_heads(self.v, x, self.heads, tokens_last=True)


class Queries(nnx.Module):
    """Query projection, normalized over all heads, and the attention's output projection."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        make = partial(linear, rngs=rngs, param_dtype=param_dtype)
        self.q = make(config.width, config.width, ("embed", "heads"))
        self.q_norm = RMSNorm(config.width, config.eps, rngs=rngs, param_dtype=param_dtype)
        self.out = make(config.width, config.width, ("heads", "embed"))
        self.heads = config.num_attention_heads

    def __call__(self, x: Tokens) -> Float[Array, "batch tokens heads dim"]:
        """Project video tokens to normalized queries."""
        return self.q_norm.over_heads(to_heads(self.q, x, self.heads))

    def finish(self, heads: Float[Array, "batch tokens heads dim"]) -> Tokens:
        """Join the attention heads, and apply the output projection."""
        return from_heads(self.out, heads)


class SelfAttention(nnx.Module):
    """Self-attention over all video tokens, with RoPE."""

    def __init__(
        self,
        config: WanConfig,
        attention: TokenAttention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        self.queries = Queries(config, rngs=rngs, param_dtype=param_dtype)
        self.own = KeysValues(config, rngs=rngs, param_dtype=param_dtype)
        self.attention = attention

    def __call__(self, x: Tokens, positions: Positions) -> Tokens:
        """Attend over all tokens of the video."""
        keys, values = self.own(x)
        queries, keys = (apply_rope(heads, positions.rope) for heads in (self.queries(x), keys))
        return self.queries.finish(self.attention(queries, keys, values, keys=positions.keys))


class VideoCrossAttention(nnx.Module):
    """Cross-attention of video tokens to the context: image tokens, if any, then text tokens.

    Text padding is not masked, as in Wan's training.
    """

    def __init__(
        self, config: WanConfig, attention: Crossing, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.queries = Queries(config, **kinds)
        self.text = KeysValues(config, **kinds)
        has_image = config.added_kv_proj_dim is not None
        self.image = KeysValues(config, **kinds) if has_image else None
        self.attention = attention

    def __call__(self, x: Tokens, context: Float[Array, "batch context_tokens width"]) -> Tokens:
        """Attend to the text, and to the image if there is one."""
        queries = self.queries(x)
        if self.image is None:
            return self.queries.finish(self.attention(queries, *self.text(context)))
        cut = context.shape[1] - TEXT_TOKENS  # negative values index from the end, as in diffusers
        output = self.attention(queries, *self.text(context[:, cut:]))
        if context[:, :cut].shape[1]:
            output = output + self.attention(queries, *self.image(context[:, :cut]))
        return self.queries.finish(output)


class WanBlock(nnx.Module):
    """Transformer block: self-attention, cross-attention and feed-forward.

    Time modulates self-attention and feed-forward.
    """

    def __init__(
        self,
        config: WanConfig,
        attention: TokenAttention,
        cross_attention: Crossing,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width = config.width
        self.self_attention = SelfAttention(config, attention, **kinds)
        self.cross_attention = VideoCrossAttention(config, cross_attention, **kinds)
        self.cross_norm = (
            LayerNorm(width, config.eps, rngs=rngs) if config.cross_attn_norm else None
        )
        self.feed_forward = WanFeedForward((width, config.ffn_dim, width), tanh_gelu, **kinds)
        self.scale_shift_table = modulation_table(6, width, rngs)
        self.epsilon = config.eps

    def __call__(
        self,
        x: Tokens,
        context: Float[Array, "batch context_tokens width"],
        condition: Float[Array, "batch times 6 width"],
        positions: Positions,
    ) -> Tokens:
        """Apply self-attention, cross-attention and feed-forward."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation(
            self.scale_shift_table, condition
        )
        normed = modulate(x, shift, scale, self.epsilon)
        x = gated(x, self.self_attention(normed, positions), gate)
        normed = x if self.cross_norm is None else self.cross_norm(x)
        x = x + self.cross_attention(normed, context)
        normed = modulate(x, mlp_shift, mlp_scale, self.epsilon)
        return split(gated(x, self.feed_forward(normed), mlp_gate), *SPLIT)

    def attention_input(self, x: Tokens, condition: Float[Array, "batch times 6 width"]) -> Tokens:
        """Return the modulated input of the block's self-attention."""
        shift, scale, *_ = modulation(self.scale_shift_table, condition)
        return modulate(x, shift, scale, self.epsilon)


class ImageEmbedding(nnx.Module):
    """Projection of CLIP tokens of one or several concatenated images to the network's width."""

    def __init__(self, config: WanConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        assert config.image_dim is not None
        features, tokens = config.image_dim, config.pos_embed_seq_len
        zeros = jnp.zeros((1, tokens or 0, features), param_dtype)
        self.positions = None if tokens is None else nnx.Param(zeros, axes=(None, None, "embed"))
        self.norm_in = LayerNorm(features, IMAGE_NORM_EPSILON, rngs=rngs)
        self.feed_forward = WanFeedForward(
            (features, features, config.width), erf_gelu, rngs=rngs, param_dtype=param_dtype
        )
        self.norm_out = LayerNorm(config.width, IMAGE_NORM_EPSILON, rngs=rngs)

    def __call__(self, x: Float[Array, "batch image_tokens features"]) -> Tokens:
        """Project CLIP's image tokens to the network's width.

        Raises: ValueError: the number of tokens differs from the number of learned positions.
        """
        if self.positions is not None:
            if x.shape[1] != self.positions.shape[1]:
                raise ValueError(
                    f"image_embeds have {x.shape[1]} tokens, but this network has positions for "
                    f"{self.positions.shape[1]} (pos_embed_seq_len): first and last frame together"
                )
            x = x + self.positions[...]
        return self.norm_out(self.feed_forward(self.norm_in(x)))


class WanTransformer(nnx.Module):
    """Denoising transformer of Wan: video latents and conditioning to velocity.

    The time embedding, norms with scale and bias, and modulation tables are always float32, as in
    diffusers.
    """

    def __init__(
        self,
        config: WanConfig,
        attention: TokenAttention = token_attention,
        cross_attention: Crossing = cross_attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, patch = config.width, config.patch_size
        make = partial(linear, **kinds)
        self.config = config
        self.patches_in = conv(config.in_channels, width, patch, strides=patch, **kinds)
        self.time_in = ConditionMLP(config.freq_dim, width, rngs=rngs)
        self.time_modulation = make(width, 6 * width, ("embed", "modulation"))
        self.text_in = WanFeedForward((config.text_dim, width, width), tanh_gelu, **kinds)
        has_image = config.image_dim is not None
        self.image_in = ImageEmbedding(config, **kinds) if has_image else None
        self.blocks = stack(
            partial(WanBlock, config, attention, cross_attention), config.num_layers, **kinds
        )
        self.scale_shift_table = modulation_table(2, width, rngs)
        patch_features = config.velocity_channels * patch[0] * patch[1] * patch[2]
        self.patches_out = make(width, patch_features, ("embed", None))

    def __call__(
        self,
        latents: Video,
        timestep: Float[Array, " batch *tokens"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None = None,
        cache: CachedStep | None = None,
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Return the velocity of the latents, in the dtype of the weights.

        Args:
            latents: whole patches along each axis; for image-to-video, with mask and image latents
                as additional channels.
            timestep: 0 to 1000, float32; per row, or per token (frame by frame, row by row).
            prompt_embeds: UMT5 features, zero at padding; any number of tokens.
            image_embeds: CLIP tokens of the image, or of first and last frame concatenated. Only
                for networks with an image_dim.
            cache: state of earlier steps; may replace most blocks.

        Raises:
            ValueError: latents that do not divide into patches or exceed RoPE's reach, or image
                embeddings that the network does not support.
        """
        step = self.embed_inputs(latents, timestep, prompt_embeds, image_embeds)
        run = self._run if cache is None else partial(self._cached, cache)
        return self.project_output(step, run(step.x, step.context, step.positions))

    def of_patches(
        self,
        latents: Video,
        timestep: Float[Array, " batch"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        grids: RowGrids,
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Return the velocity of latents stored as a sequence of patches, followed by padding.

        Args:
            grids: patch grids of the rows.
        """
        step = self.embed_inputs(latents, timestep, prompt_embeds, None, grids)
        return self.project_output(step, self._run(step.x, step.context, step.positions))

    def embed_inputs(
        self,
        latents: Video,
        timestep: Float[Array, " batch *tokens"],
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None,
        grids: RowGrids | None = None,
    ) -> EmbeddedStep:
        """Embed a step's inputs as tokens. Raises: ValueError: as `__call__`."""
        if grids is None:
            grid = self._grid(latents.shape[1:4])
            positions = self.positions(grid)
        else:
            grid = (grids.tokens, 1, 1)
            positions = grids.positions(self.config.axes_dims_rope)
        context = self.context(prompt_embeds.astype(self.patches_in.kernel.dtype), image_embeds)
        time = self.time(timestep)
        if timestep.ndim > 1:
            time = padded_tokens.pad(time)
        condition = self.time_modulation(jax.nn.silu(time))
        condition = condition.reshape(*time.shape[:2], 6, -1)
        x = self.tokens(self.patches_in, latents)
        return EmbeddedStep(x, time, BlockContext(context, condition), positions, grid)

    def tokens(self, patches_in: Conv, video: Video) -> Tokens:
        """Embed a video's patches as tokens, with padding."""
        return self.padded(convolved(patches_in, video.astype(patches_in.kernel.dtype)))

    def padded(self, patches: Float[Array, "batch frames rows columns width"]) -> Tokens:
        """Flatten patches into a padded token sequence."""
        return split(
            padded_tokens.pad(patches.reshape(len(patches), -1, self.config.width)), *SPLIT
        )

    def project_output(
        self, step: EmbeddedStep, x: Tokens
    ) -> Float[Array, "batch frames rows columns out_channels"]:
        """Project the last block's tokens to a velocity."""
        shift, scale = modulation(self.scale_shift_table, step.time[:, :, None])
        x = self.patches_out(modulate(x, shift, scale, self.config.eps))
        return unpatch(x[:, : math.prod(step.grid)], step.grid, self.config.patch_size)

    @property
    def depth(self) -> int:
        """Number of transformer blocks."""
        return self.config.num_layers

    def _run(
        self,
        x: Tokens,
        context: BlockContext,
        positions: Positions,
        between: tuple[int, int] | None = None,
    ) -> Tokens:
        return scan(
            self.blocks, x, lambda block, x: block(x, *context, positions), between=between
        )[0]

    def _cached(
        self, cache: CachedStep, x: Tokens, context: BlockContext, positions: Positions
    ) -> Tokens:
        x, signal = self.signal(x, context, positions, cache.first)
        between = (cache.first, self.depth)
        return cache.run(
            BlockInputs(x, x, signal),
            context,
            lambda x, context: self._run(x, context, positions, between),
        )

    def signal(
        self, x: Tokens, context: BlockContext, positions: Positions, first: int
    ) -> tuple[Tokens, Tokens]:
        """Run the first blocks; return their output tokens and the step cache's signal."""
        if first:
            output = self._run(x, context, positions, (0, first))
            return output, output - x
        signal, _ = scan(
            self.blocks,
            x,
            lambda block, x: block.attention_input(x, context.condition),
            between=(0, 1),
        )
        return x, signal

    def positions(self, grid: tuple[int, ...]) -> Positions:
        """Return the positions of a grid's padded tokens; the last axis varies fastest."""
        rope = grid_rope_table(grid, self.config.axes_dims_rope)
        count = math.prod(grid)
        padding = ((0, padded_tokens.padding(count)), (0, 0))
        padded = RopeTable(*(jnp.pad(part, padding) for part in rope))
        return Positions(padded, padded_tokens.counted(count))

    def time(self, timestep: Float[Array, " batch *tokens"]) -> Float[Array, "batch times width"]:
        """Embed the timesteps in float32, one per row or one per token."""
        features = sinusoid(timestep.reshape(-1), self.config.freq_dim)
        vectors = self.time_in(features).astype(self.time_modulation.kernel.dtype)
        return vectors.reshape(len(timestep), -1, self.config.width)

    def context(
        self,
        prompt_embeds: Float[Array, "batch text_tokens text_dim"],
        image_embeds: Float[Array, "batch image_tokens image_dim"] | None,
    ) -> Float[Array, "batch context_tokens width"]:
        """Project image and text features to the network's width, and concatenate them."""
        text = self.text_in(prompt_embeds)
        if image_embeds is None:
            return text
        if self.image_in is None:
            raise ValueError("this transformer takes no image_embeds: it has no image_dim")
        return jnp.concatenate([self.image_in(image_embeds.astype(text.dtype)), text], axis=1)

    def _grid(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of patches of latents along each axis; validates the sizes."""
        for axis, size, patch in zip(AXES, sizes, self.config.patch_size, strict=True):
            if size % patch:
                raise ValueError(f"{size} {axis} of latents do not divide into patches of {patch}")
            if size // patch > self.config.rope_max_seq_len:
                raise ValueError(
                    f"{size} {axis} of latents are more than rope_max_seq_len "
                    f"{self.config.rope_max_seq_len} patches of {patch}"
                )
        return tuple(
            size // patch for size, patch in zip(sizes, self.config.patch_size, strict=True)
        )


def unpatch(
    x: Float[Array, "batch tokens features"], grid: tuple[int, ...], patch: tuple[int, ...]
) -> Video:
    """Rearrange a transformer's output tokens into video latents."""
    frames, rows, columns = grid
    x = x.reshape(len(x), frames, rows, columns, *patch, -1).transpose(0, 1, 4, 2, 5, 3, 6, 7)
    return x.reshape(len(x), frames * patch[0], rows * patch[1], columns * patch[2], -1)
