"""Building blocks of a UNet level: residual blocks, spatial transformers, and resampling.

Layout is channels-last. Source: Rombach et al. 2022, appendix E.2, as implemented in diffusers'
unet_2d_blocks.py and attention.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import (
    CrossAttention,
    TokenAttention,
    cross_attention,
    token_attention,
)
from models.nn.layers.activations import erf_gelu
from models.nn.layers.conv_strips import join_strips, repeat_by_strip, split_strips
from models.nn.layers.norms import GroupNorm
from models.nn.layers.parameterised import conv, linear
from models.nn.layers.scanned import scan, stack_any
from models.nn.layers.split_channels import split_inputs, split_outputs
from models.parallel.placement import split
from models.sdxl.config import ACTIVATIONS, Level, UNetConfig
from models.sdxl.ip_adapter import ImageKeys

Features = Float[Array, "_batch _height _width _channels"]
"""Feature maps of a batch, or all strips of each image (models/nn/layers/conv_strips.py). Most
layers change some of these sizes."""
Tokens = Float[Array, "batch tokens width"]
Text = Float[Array, "batch text_tokens text_features"]
Vector = Float[Array, "batch time_features"]
Images = tuple[ImageKeys, ...]
"""Image prompts of one layer, one entry per adapter; for a transformer, with a leading layer axis.
"""
BlockImages = tuple[Images, ...]
"""Image prompts of each transformer of a block; empty if there are none."""

TRANSFORMER_NORM_EPSILON = 1e-6
LAYER_NORM_EPSILON = 1e-5
_SAME = ((1, 1), (1, 1))
_SPLIT_OUTPUTS, _SPLIT_INPUTS = ("conv_in", "channels"), ("channels", "conv_out")
"""Weight axes of convolutions split over `tensor` by output channels, or by input channels."""
_HALVE = {0: ((0, 1), (0, 1)), 1: _SAME}
"""Padding of a stride-2 convolution, by `downsample_padding`."""


class Attentions(NamedTuple):
    """Attention implementations for image tokens: self-attention and cross-attention to text."""

    to_itself: TokenAttention = token_attention
    to_text: CrossAttention = cross_attention


BY_LAYOUT = Attentions()


def split_rows(x: Features) -> Features:
    """Constrain feature maps to the layout's row split; convolutions then exchange edge rows."""
    return split(x, "batch", "rows", None, None)


def split_channels(x: Features) -> Features:
    """Constrain feature maps to the layout's split of rows and channels.

    If each normalization group is on one device, the norm needs no communication. Otherwise XLA
    inserts a reduction.
    """
    return split(x, "batch", "rows", None, "channels")


class UNetResnetBlock(nnx.Module):
    """Residual block: two convolutions with the time embedding in between, plus a shortcut.

    The time embedding is added, or with `scale_shift` scales and shifts the output of the second
    norm. If the outputs of the first convolution are split by channels, so are the inputs of the
    second.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        config: UNetConfig,
        *,
        output_scale: int | float = 1.0,
        **make: Any,
    ) -> None:
        groups, epsilon = config.norm_num_groups, config.norm_eps
        self.scale_shift = config.resnet_time_scale_shift == "scale_shift"
        time_width = 2 * width if self.scale_shift else width
        self.norm1 = GroupNorm(in_width, groups, epsilon, **make)
        self.conv1 = conv(in_width, width, (3, 3), padding=_SAME, axes=_SPLIT_OUTPUTS, **make)
        self.time_emb_proj = linear(config.time_features, time_width, ("embed", "channels"), **make)
        self.norm2 = GroupNorm(width, groups, epsilon, axis="channels", **make)
        self.conv2 = conv(width, width, (3, 3), padding=_SAME, axes=_SPLIT_INPUTS, **make)
        self.conv_shortcut = (
            conv(in_width, width, (1, 1), axes=_SPLIT_INPUTS, **make) if in_width != width else None
        )
        self.activation = ACTIVATIONS[config.act_fn]
        self.output_scale = output_scale

    def __call__(self, x: Features, time: Vector) -> Features:
        """Convolve twice, apply the time embedding in between, and add the shortcut."""
        time_embedding = repeat_by_strip(
            self.time_emb_proj(self.activation(time))[:, None, None, :]
        )
        hidden = split_channels(split_outputs(self.conv1, self.activation(self.norm1(x))))
        if self.scale_shift:
            scale, shift = jnp.split(time_embedding, 2, axis=-1)
            hidden = self.norm2(hidden) * (1 + scale) + shift
        else:
            hidden = self.norm2(hidden + time_embedding)
        hidden = split_inputs(self.conv2, split_channels(self.activation(hidden)))
        shortcut = x if self.conv_shortcut is None else split_inputs(self.conv_shortcut, x)
        return split_rows((shortcut + hidden) / self.output_scale)


class UNetAttention(nnx.Module):
    """Multi-head attention of image tokens to themselves or to the text."""

    def __init__(
        self, width: int, context: int, heads: int, attention: CrossAttention, **make: Any
    ) -> None:
        self.q = linear(width, width, ("embed", "heads"), use_bias=False, **make)
        self.k = linear(context, width, ("embed", "heads"), use_bias=False, **make)
        self.v = linear(context, width, ("embed", "heads"), use_bias=False, **make)
        self.out = linear(width, width, ("heads", "embed"), **make)
        self.heads = heads
        self.attention = attention

    def __call__(
        self,
        x: Tokens,
        context: Float[Array, "batch _context_tokens _context_width"],
        images: Images = (),
    ) -> Tokens:
        """Attend to the context, and separately to each image prompt; the results are summed.

        Source: Ye et al. 2023 (IP-Adapter), eq. 5.
        """
        q, k, v = (
            self._by_heads(project(tokens))
            for project, tokens in ((self.q, x), (self.k, context), (self.v, context))
        )
        attended = self.attention(q, k, v)
        for image in images:
            attended = attended + self.attention(q, *map(self._by_heads, image))
        return self.out(attended.reshape(x.shape))

    def _by_heads(self, x: Array) -> Float[Array, "batch _tokens heads _dim"]:
        return x.reshape(*x.shape[:2], self.heads, -1)


class TransformerLayer(nnx.Module):
    """Pre-norm self-attention, cross-attention to the text, and gated feed-forward."""

    def __init__(self, width: int, level: Level, attention: Attentions, **make: Any) -> None:
        text, heads = level.text_features, level.heads
        self.only_cross_attention = level.only_cross_attention
        first_context = text if self.only_cross_attention else width
        self.norm1, self.norm2, self.norm3 = (_layer_norm(width, **make) for _ in range(3))
        first = attention.to_text if self.only_cross_attention else attention.to_itself
        self.attn1 = UNetAttention(width, first_context, heads, first, **make)
        self.attn2 = UNetAttention(width, text, heads, attention.to_text, **make)
        self.up = linear(width, 8 * width, ("embed", "mlp"), **make)
        self.down = linear(4 * width, width, ("mlp", "embed"), **make)

    def __call__(self, x: Tokens, text: Text, images: Images = ()) -> Tokens:
        """Apply self-attention, cross-attention to text and image prompts, and the feed-forward."""
        normed = self.norm1(x)
        x = x + self.attn1(normed, text if self.only_cross_attention else normed)
        x = x + self.attn2(self.norm2(x), text, images)
        return x + self.feed_forward(self.norm3(x))

    def feed_forward(self, x: Tokens) -> Tokens:
        """Apply the GEGLU feed-forward. Source: Shazeer 2020 (GLU variants)."""
        hidden, gate = jnp.split(self.up(x), 2, axis=-1)
        return self.down(hidden * erf_gelu(gate))


class Transformer(nnx.Module):
    """Spatial transformer: transformer layers over all positions of a level, plus a shortcut.

    Files store its projections as 1 x 1 convolutions or as matrices; both load into this module.
    """

    def __init__(
        self, level: Level, depth: int, groups: int, attention: Attentions, **make: Any
    ) -> None:
        inner = level.heads * (level.channels // level.heads)
        self.norm = GroupNorm(level.channels, groups, TRANSFORMER_NORM_EPSILON, **make)
        self.proj_in = linear(level.channels, inner, ("embed", "channels"), **make)
        self.layers = stack_any(partial(TransformerLayer, inner, level, attention), depth, **make)
        self.proj_out = linear(inner, level.channels, ("embed", "channels"), **make)

    def __call__(self, x: Features, text: Text, images: Images = ()) -> Features:
        """Flatten positions into tokens, apply the layers, and add the input."""
        features = split_rows(join_strips(self.proj_in(self.norm(x))))
        tokens = features.reshape(len(features), -1, features.shape[-1])
        if self.layers is not None:
            tokens, _ = scan(
                self.layers,
                tokens,
                lambda layer, tokens, images: layer(tokens, text, images),
                images,
            )
        out = self.proj_out(tokens).reshape(*features.shape[:-1], x.shape[-1])
        return split_rows(x + split_strips(out))


class UNetDownBlock(nnx.Module):
    """Level of the down path: alternating residual blocks and transformers, then downsampling."""

    def __init__(
        self,
        in_width: int,
        level: Level,
        config: UNetConfig,
        attention: Attentions,
        *,
        downsample: bool,
        **make: Any,
    ) -> None:
        width = level.channels
        self.resnets = nnx.List(
            UNetResnetBlock(width if index else in_width, width, config, **make)
            for index in range(level.residual_blocks)
        )
        self.attentions = _transformers(level, config, attention, **make)
        padding = _HALVE[config.downsample_padding]
        self.downsample = (
            conv(width, width, (3, 3), strides=2, padding=padding, axes=_SPLIT_OUTPUTS, **make)
            if downsample
            else None
        )

    def __call__(
        self, x: Features, time: Vector, text: Text, images: BlockImages = ()
    ) -> list[Features]:
        """Return the state after each residual block and its transformer, then downsampled."""
        states = self.at_its_size(x, time, text, images)
        return [*states, *self.halved(states[-1])]

    def at_its_size(
        self, x: Features, time: Vector, text: Text, images: BlockImages = ()
    ) -> list[Features]:
        """Return the state after each residual block and its transformer; no downsampling."""
        states = []
        for index, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions is not None:
                x = self.attentions[index](x, text, part_of(images, index))
            states.append(x)
        return states

    def halved(self, x: Features) -> list[Features]:
        """Return the downsampled state in a list; the lowest level returns an empty list."""
        return [] if self.downsample is None else [split_rows(split_outputs(self.downsample, x))]


class UNetMidBlock(nnx.Module):
    """Middle block: one residual block, or two with a transformer in between."""

    def __init__(self, config: UNetConfig, attention: Attentions, **make: Any) -> None:
        level, scale = config.mid_level, config.mid_block_scale_factor
        self.resnets = nnx.List(
            UNetResnetBlock(level.channels, level.channels, config, output_scale=scale, **make)
            for _ in range(level.residual_blocks)
        )
        self.attentions = _transformers(
            level._replace(only_cross_attention=False), config, attention, **make
        )

    def __call__(self, x: Features, time: Vector, text: Text, images: BlockImages = ()) -> Features:
        """Apply the UNet's middle block at the lowest resolution."""
        x = self.resnets[0](x, time)
        if self.attentions is not None:
            x = self.resnets[1](self.attentions[0](x, text, part_of(images, 0)), time)
        return x


class UNetUpBlock(nnx.Module):
    """Level of the up path: each residual block also receives a skip state of the down path.

    Args:
        in_width: channels of the input from the level below.
        skip_widths: channels of the skip states, in order of use.
    """

    def __init__(
        self,
        in_width: int,
        skip_widths: list[int],
        level: Level,
        config: UNetConfig,
        attention: Attentions,
        *,
        upsample: bool,
        **make: Any,
    ) -> None:
        width = level.channels
        self.resnets = nnx.List(
            UNetResnetBlock((width if index else in_width) + skip, width, config, **make)
            for index, skip in enumerate(skip_widths)
        )
        self.attentions = _transformers(level, config, attention, **make)
        self.upsample = (
            conv(width, width, (3, 3), padding=_SAME, axes=_SPLIT_OUTPUTS, **make)
            if upsample
            else None
        )

    def __call__(
        self,
        x: Features,
        skips: list[Features],
        time: Vector,
        text: Text,
        size: tuple[int, ...],
        images: BlockImages = (),
    ) -> Features:
        """Apply the blocks, then upsample to `size` (height, width) if a next level follows."""
        for index, (resnet, skip) in enumerate(zip(self.resnets, skips, strict=True)):
            x = resnet(jnp.concatenate([x, skip], axis=-1), time)
            if self.attentions is not None:
                x = self.attentions[index](x, text, part_of(images, index))
        if self.upsample is None:
            return x
        return split_rows(split_outputs(self.upsample, nearest(x, size)))


def part_of(images: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    """Return the image prompts' keys and values of one block or transformer; empty without any."""
    part: tuple[Any, ...] = images[index] if images else ()
    return part


def nearest(x: Features, size: tuple[int, ...]) -> Features:
    """Resize an image by nearest neighbour, rounding down, as torch's `nearest` does."""
    batch, height, width, channels = x.shape
    if size == (2 * height, 2 * width):
        repeated = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
        return repeated.reshape(batch, *size, channels)
    return x[:, _sources(height, size[0])][:, :, _sources(width, size[1])]


def _sources(size: int, target_size: int) -> np.ndarray:
    """Return the source index of each target position, rounded in float32 as in the reference."""
    places = np.arange(target_size, dtype=np.float32) * np.float32(size / target_size)
    return np.minimum(places.astype(np.int32), size - 1)


def _layer_norm(width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.LayerNorm:
    return nnx.LayerNorm(
        width,
        epsilon=LAYER_NORM_EPSILON,
        use_fast_variance=False,
        scale_metadata={"axes": ("embed",)},
        bias_metadata={"axes": ("embed",)},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def _transformers(
    level: Level, config: UNetConfig, attention: Attentions, **make: Any
) -> nnx.List[Transformer] | None:
    if level.depths is None:
        return None
    groups = config.norm_num_groups
    return nnx.List(Transformer(level, depth, groups, attention, **make) for depth in level.depths)
