"""The parts of a UNet level: residual blocks, transformers over its positions, changes of size.

Channels last. Source: Rombach et al. 2022, appendix E.2, as diffusers' unet_2d_blocks.py and
attention.py compute it.
"""

from __future__ import annotations

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
from models.nn.layers.scanned import scan, stack
from models.nn.layers.split_channels import split_inputs, split_outputs
from models.parallel.placement import split
from models.sdxl.config import ACTIVATIONS, Level, UNetConfig
from models.sdxl.ip_adapter import ImageKeys

Features = Float[Array, "_batch _height _width _channels"]
"""Images, or all strips of each (models/nn/layers/conv_strips.py). Most layers change some of
these sizes."""
Tokens = Float[Array, "batch tokens width"]
Text = Float[Array, "batch text_tokens text_features"]
Vector = Float[Array, "batch time_features"]
Images = tuple[ImageKeys, ...]
"""Image prompts, one an adapter: of a layer, or of a transformer with the layers in front."""
BlockImages = tuple[Images, ...]
"""Image prompts of each transformer of a block; empty: there are none."""

TRANSFORMER_NORM_EPSILON = 1e-6
LAYER_NORM_EPSILON = 1e-5
_SAME = ((1, 1), (1, 1))
_APART, _TOGETHER = ("conv_in", "channels"), ("channels", "conv_out")
"""Axes of convolutions whose outputs, or inputs, are split by channels over `tensor`."""
_HALVE = {0: ((0, 1), (0, 1)), 1: _SAME}
"""Padding before a stride of two, by `downsample_padding`."""


class Attentions(NamedTuple):
    """Attentions of the image's tokens: to each other, and to the text's."""

    to_itself: TokenAttention = token_attention
    to_text: CrossAttention = cross_attention


BY_LAYOUT = Attentions()


def split_rows(x: Features) -> Features:
    """The same image; a layout may split its rows, and its convolutions exchange their edges."""
    return split(x, "batch", "rows", None, None)


def split_channels(x: Features) -> Features:
    """The same image, its channels shared out too.

    Where groups of them lie on one device each, a norm needs nothing of the others; where not, XLA
    adds their sums up.
    """
    return split(x, "batch", "rows", None, "channels")


class UNetResnetBlock(nnx.Module):
    """Two convolutions, told the time between them, beside a shortcut.

    The time is added, or with `scale_shift` scales and shifts behind the second norm. The first
    one's outputs may be split by channels: so are the second one's inputs then.
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
        given = 2 * width if self.scale_shift else width
        self.norm1 = GroupNorm(in_width, groups, epsilon, **make)
        self.conv1 = conv(in_width, width, (3, 3), padding=_SAME, axes=_APART, **make)
        self.time_emb_proj = linear(config.time_features, given, ("embed", "channels"), **make)
        self.norm2 = GroupNorm(width, groups, epsilon, axis="channels", **make)
        self.conv2 = conv(width, width, (3, 3), padding=_SAME, axes=_TOGETHER, **make)
        self.conv_shortcut = (
            conv(in_width, width, (1, 1), axes=_TOGETHER, **make) if in_width != width else None
        )
        self.activation = ACTIVATIONS[config.act_fn]
        self.output_scale = output_scale

    def __call__(self, x: Features, time: Vector) -> Features:
        """Convolve twice, with the time in between, and add the input."""
        given = repeat_by_strip(self.time_emb_proj(self.activation(time))[:, None, None, :])
        hidden = split_channels(split_outputs(self.conv1, self.activation(self.norm1(x))))
        if self.scale_shift:
            scale, shift = jnp.split(given, 2, axis=-1)
            hidden = self.norm2(hidden) * (1 + scale) + shift
        else:
            hidden = self.norm2(hidden + given)
        hidden = split_inputs(self.conv2, split_channels(self.activation(hidden)))
        shortcut = x if self.conv_shortcut is None else split_inputs(self.conv_shortcut, x)
        return split_rows((shortcut + hidden) / self.output_scale)


class UNetAttention(nnx.Module):
    """Attention of the image's tokens to themselves or to the text, by several heads."""

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
        """Attend to the context, and to each image prompt on its own.

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
    """Attention to the image, attention to the text, gated feed-forward; each normed before."""

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
        """Attend to the tokens, then to the text and image prompts, then feed forward."""
        normed = self.norm1(x)
        x = x + self.attn1(normed, text if self.only_cross_attention else normed)
        x = x + self.attn2(self.norm2(x), text, images)
        return x + self.feed_forward(self.norm3(x))

    def feed_forward(self, x: Tokens) -> Tokens:
        """Source: Shazeer 2020 (GLU variants), GEGLU."""
        hidden, gate = jnp.split(self.up(x), 2, axis=-1)
        return self.down(hidden * erf_gelu(gate))


class Transformer(nnx.Module):
    """Transformer layers over all positions of a level, beside a shortcut.

    Its projections are 1 x 1 convolutions in some files and matrices in others; both are this.
    """

    def __init__(
        self, level: Level, depth: int, groups: int, attention: Attentions, **make: Any
    ) -> None:
        inner = level.heads * (level.channels // level.heads)
        self.norm = GroupNorm(level.channels, groups, TRANSFORMER_NORM_EPSILON, **make)
        self.proj_in = linear(level.channels, inner, ("embed", "channels"), **make)
        self.layers = _layers(inner, level, depth, attention, **make)
        self.proj_out = linear(inner, level.channels, ("embed", "channels"), **make)

    def __call__(self, x: Features, text: Text, images: Images = ()) -> Features:
        """Apply the layers to the pixels as tokens."""
        picture = split_rows(join_strips(self.proj_in(self.norm(x))))
        tokens = picture.reshape(len(picture), -1, picture.shape[-1])
        if self.layers is not None:
            tokens, _ = scan(
                self.layers,
                tokens,
                lambda layer, tokens, images: layer(tokens, text, images),
                images,
            )
        out = self.proj_out(tokens).reshape(*picture.shape[:-1], x.shape[-1])
        return split_rows(x + split_strips(out))


class UNetDownBlock(nnx.Module):
    """A level on the way down: residual blocks and transformers by turns, then half the size."""

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
            conv(width, width, (3, 3), strides=2, padding=padding, axes=_APART, **make)
            if downsample
            else None
        )

    def __call__(
        self, x: Features, time: Vector, text: Text, images: BlockImages = ()
    ) -> list[Features]:
        """Return every residual block's output, with its transformer, and then the halved one."""
        states = self.at_its_size(x, time, text, images)
        return [*states, *self.halved(states[-1])]

    def at_its_size(
        self, x: Features, time: Vector, text: Text, images: BlockImages = ()
    ) -> list[Features]:
        """Return every residual block's output, with its transformer."""
        states = []
        for index, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions is not None:
                x = self.attentions[index](x, text, part_of(images, index))
            states.append(x)
        return states

    def halved(self, x: Features) -> list[Features]:
        """Return the state at half the size; of the lowest level there is none."""
        return [] if self.downsample is None else [split_rows(split_outputs(self.downsample, x))]


class UNetMidBlock(nnx.Module):
    """The lowest level: one residual block, or two with a transformer between them."""

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
        """Apply the blocks of the lowest resolution."""
        x = self.resnets[0](x, time)
        if self.attentions is not None:
            x = self.resnets[1](self.attentions[0](x, text, part_of(images, 0)), time)
        return x


class UNetUpBlock(nnx.Module):
    """A level on the way up: each residual block is given one state of the way down, too.

    Args:
        in_width: channels of what comes from below.
        skip_widths: channels of the states of the way down, in the order in which they are used.
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
            conv(width, width, (3, 3), padding=_SAME, axes=_APART, **make) if upsample else None
        )

    def __call__(
        self,
        x: Features,
        skips: list[Features],
        time: Vector,
        text: Text,
        size: tuple[int, int],
        images: BlockImages = (),
    ) -> Features:
        """`size`: height and width of the next level, where there is one."""
        for index, (resnet, skip) in enumerate(zip(self.resnets, skips, strict=True)):
            x = resnet(jnp.concatenate([x, skip], axis=-1), time)
            if self.attentions is not None:
                x = self.attentions[index](x, text, part_of(images, index))
        if self.upsample is None:
            return x
        return split_rows(split_outputs(self.upsample, nearest(x, size)))


def part_of(images: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    """Return one block's or transformer's share of the image prompts; empty: there are none."""
    part: tuple[Any, ...] = images[index] if images else ()
    return part


def nearest(x: Features, size: tuple[int, int]) -> Features:
    """Resized by the nearest position above and to the left, as torch's `nearest` does."""
    batch, height, width, channels = x.shape
    if size == (2 * height, 2 * width):
        wide = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
        return wide.reshape(batch, *size, channels)
    return x[:, _sources(height, size[0])][:, :, _sources(width, size[1])]


def _sources(found: int, wanted: int) -> np.ndarray:
    """Return source indices, in float32: the reference's rounding decides between two."""
    places = np.arange(wanted, dtype=np.float32) * np.float32(found / wanted)
    return np.minimum(places.astype(np.int32), found - 1)


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


def _layers(
    width: int,
    level: Level,
    depth: int,
    attention: Attentions,
    *,
    rngs: nnx.Rngs,
    param_dtype: DTypeLike,
) -> TransformerLayer | None:
    """Equal layers as one, or None: distilled networks have transformers without any."""
    if depth == 0:
        return None

    def make(rngs: nnx.Rngs) -> TransformerLayer:
        return TransformerLayer(width, level, attention, rngs=rngs, param_dtype=param_dtype)

    return stack(make, depth, rngs)


def _transformers(
    level: Level, config: UNetConfig, attention: Attentions, **make: Any
) -> nnx.List | None:
    if level.depths is None:
        return None
    groups = config.norm_num_groups
    return nnx.List(Transformer(level, depth, groups, attention, **make) for depth in level.depths)
