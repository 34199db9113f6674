"""Image autoencoder of Flux and SDXL: diffusers' AutoencoderKL, channels last.

Source: Rombach et al. 2022, appendix E.1, as diffusers' `AutoencoderKL` computes it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import CrossAttention
from models.nn.layers.conv_strips import join_strips, split_strips
from models.nn.layers.convolution import convolved
from models.nn.layers.norms import GroupNorm
from models.nn.layers.parameterised import conv, linear
from models.vae.config import VaeConfig
from models.vae.sharded import (
    attend_by_positions,
    image_strip_layout,
    replicated,
    split_image,
    split_positions,
)

EPSILON = 1e-6
_SAME = ((1, 1), (1, 1))
_HALVE = ((0, 1), (0, 1))

Features = Float[Array, "batch _height _width _channels"]
"""Feature maps. Most layers change some of these sizes, so only the batch has a fixed name."""


class AutoencoderKL(nnx.Module):
    """Autoencoder of pixels in [-1, 1] and latents with 1 / `config.downsampling` of each side.

    Latents are unscaled: the pipeline applies shift and scaling factor.
    """

    def __init__(
        self,
        config: VaeConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: CrossAttention = attend_by_positions,
    ) -> None:
        self.config = config
        make: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        latent = config.latent_channels
        self.encoder = ImageEncoder(config, attention=attention, **make)
        self.decoder = ImageDecoder(config.of_decoder, attention=attention, **make)
        if config.use_quant_conv:
            self.quant_conv = conv(2 * latent, 2 * latent, (1, 1), **make)
        if config.use_post_quant_conv:
            self.post_quant_conv = conv(latent, latent, (1, 1), **make)

    def encode(
        self, pixels: Float[Array, "batch height width colours"]
    ) -> tuple[Float[Array, "batch h w latent"], Float[Array, "batch h w latent"]]:
        """Return mean and log-variance, clipped to [-30, 20], of the latents of `pixels`."""
        return self.posterior(self.moments(pixels))

    def moments(
        self, pixels: Float[Array, "batch height width colours"]
    ) -> Float[Array, "batch h w moments"]:
        """Encode pixels to the posterior's mean and unclipped log-variance, in one array."""
        factor = self.config.downsampling
        with image_strip_layout(pixels.shape[1] // factor, pixels.shape[2] // factor):
            moments = join_strips(self.encoder(split_strips(pixels)))
        return self.quant_conv(moments) if self.config.use_quant_conv else moments

    def posterior(
        self, moments: Float[Array, "batch h w moments"]
    ) -> tuple[Float[Array, "batch h w latent"], Float[Array, "batch h w latent"]]:
        """Split moments into the posterior's mean and clipped log-variance."""
        mean, log_variance = jnp.split(moments, 2, axis=-1)
        return mean, jnp.clip(log_variance, -30.0, 20.0)

    def decode(
        self, latents: Float[Array, "batch h w latent"]
    ) -> Float[Array, "batch height width colours"]:
        """Return pixels, about in [-1, 1] and not clipped."""
        if self.config.use_post_quant_conv:
            latents = self.post_quant_conv(latents)
        with image_strip_layout(*latents.shape[1:3]):
            return join_strips(self.decoder(split_strips(latents)))


class ImageEncoder(nnx.Module):
    """Encoder from pixels to moments [batch, h, w, 2 · latent]."""

    def __init__(self, config: VaeConfig, *, attention: CrossAttention, **make: Any) -> None:
        widths = config.block_out_channels
        last = len(widths) - 1
        self.conv_in = conv(config.in_channels, widths[0], (3, 3), padding=_SAME, **make)
        self.down_blocks = nnx.List(
            ImageDownBlock(
                widths[max(i - 1, 0)],
                width,
                config.layers_per_block,
                config.norm_num_groups,
                downsample=i < last,
                **make,
            )
            for i, width in enumerate(widths)
        )
        self.mid_block = ImageMidBlock(widths[-1], config, attention=attention, **make)
        self.conv_norm_out = GroupNorm(widths[-1], config.norm_num_groups, EPSILON, **make)
        self.conv_out = conv(widths[-1], 2 * config.latent_channels, (3, 3), padding=_SAME, **make)

    def __call__(self, pixels: Features) -> Features:
        x = convolved(self.conv_in, split_image(pixels))
        for block in self.down_blocks:
            x = block(x)
        return convolved(self.conv_out, nnx.silu(self.conv_norm_out(self.mid_block(x))))


class ImageDecoder(nnx.Module):
    """Decoder from latents to pixels."""

    def __init__(self, config: VaeConfig, *, attention: CrossAttention, **make: Any) -> None:
        widths = config.block_out_channels[::-1]
        last = len(widths) - 1
        self.conv_in = conv(config.latent_channels, widths[0], (3, 3), padding=_SAME, **make)
        self.mid_block = ImageMidBlock(widths[0], config, attention=attention, **make)
        self.up_blocks = nnx.List(
            ImageUpBlock(
                widths[max(i - 1, 0)],
                width,
                config.layers_per_block + 1,
                config.norm_num_groups,
                upsample=i < last,
                **make,
            )
            for i, width in enumerate(widths)
        )
        self.conv_norm_out = GroupNorm(widths[-1], config.norm_num_groups, EPSILON, **make)
        self.conv_out = conv(widths[-1], config.out_channels, (3, 3), padding=_SAME, **make)

    def __call__(self, latents: Features) -> Features:
        x = self.mid_block(convolved(self.conv_in, split_image(latents)))
        for block in self.up_blocks:
            x = block(x)
        return convolved(self.conv_out, nnx.silu(self.conv_norm_out(x)))


class ImageDownBlock(nnx.Module):
    """Residual blocks, then halved size: padded at the right and bottom edge only."""

    def __init__(
        self, in_width: int, width: int, depth: int, groups: int, *, downsample: bool, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, groups, **make)
        self.downsample = (
            conv(width, width, (3, 3), strides=2, padding=_HALVE, **make) if downsample else None
        )

    def __call__(self, x: Features) -> Features:
        for resnet in self.resnets:
            x = resnet(x)
        return x if self.downsample is None else split_image(convolved(self.downsample, x))


class ImageUpBlock(nnx.Module):
    """Residual blocks, then doubled size: nearest neighbour and a convolution."""

    def __init__(
        self, in_width: int, width: int, depth: int, groups: int, *, upsample: bool, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, groups, **make)
        self.upsample = conv(width, width, (3, 3), padding=_SAME, **make) if upsample else None

    def __call__(self, x: Features) -> Features:
        for resnet in self.resnets:
            x = resnet(x)
        if self.upsample is None:
            return x
        return split_image(convolved(self.upsample, _nearest_twice(x)))


class ImageMidBlock(nnx.Module):
    """Two residual blocks, with optional attention over all positions between them."""

    def __init__(
        self, width: int, config: VaeConfig, *, attention: CrossAttention, **make: Any
    ) -> None:
        groups = config.norm_num_groups
        self.resnets = _resnets(width, width, 2, groups, **make)
        self.attention = (
            SpatialAttention(width, groups, attention=attention, **make)
            if config.mid_block_add_attention
            else None
        )

    def __call__(self, x: Features) -> Features:
        x = self.resnets[0](x)
        if self.attention is not None:
            x = self.attention(x)
        return self.resnets[1](x)


class ImageResnetBlock(nnx.Module):
    """Residual block x + conv(silu(norm(conv(silu(norm(x)))))).

    A 1x1 convolution projects x if the width changes.
    """

    def __init__(self, in_width: int, width: int, groups: int, **make: Any) -> None:
        self.norm1 = GroupNorm(in_width, groups, EPSILON, **make)
        self.conv1 = conv(in_width, width, (3, 3), padding=_SAME, **make)
        self.norm2 = GroupNorm(width, groups, EPSILON, **make)
        self.conv2 = conv(width, width, (3, 3), padding=_SAME, **make)
        self.conv_shortcut = conv(in_width, width, (1, 1), **make) if in_width != width else None

    def __call__(self, x: Features) -> Features:
        hidden = convolved(self.conv1, nnx.silu(self.norm1(x)))
        hidden = convolved(self.conv2, nnx.silu(self.norm2(hidden)))
        return split_image(hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x)))


class SpatialAttention(nnx.Module):
    """Residual attention with one head over all positions of the image."""

    def __init__(self, width: int, groups: int, *, attention: CrossAttention, **make: Any) -> None:
        axes = ("conv_in", "conv_out")
        self.group_norm = GroupNorm(width, groups, EPSILON, **make)
        self.to_q = linear(width, width, axes, **make)
        self.to_k = linear(width, width, axes, **make)
        self.to_v = linear(width, width, axes, **make)
        self.to_out = linear(width, width, axes, **make)
        self.attend = attention

    def __call__(self, x: Features) -> Features:
        features = replicated(join_strips(self.group_norm(x)))
        batch, height, width, channels = features.shape
        tokens = split_positions(features.reshape(batch, height * width, 1, channels))
        keys, values = replicated(self.to_k(tokens)), replicated(self.to_v(tokens))
        out = split_positions(self.attend(self.to_q(tokens), keys, values))
        return split_image(x + split_strips(replicated(self.to_out(out)).reshape(features.shape)))


def _resnets(
    in_width: int, width: int, depth: int, groups: int, **make: Any
) -> nnx.List[ImageResnetBlock]:
    return nnx.List(
        ImageResnetBlock(width if i else in_width, width, groups, **make) for i in range(depth)
    )


def _nearest_twice(x: Features) -> Features:
    batch, height, width, channels = x.shape
    wide = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
    return wide.reshape(batch, 2 * height, 2 * width, channels)


__all__ = ["AutoencoderKL", "VaeConfig"]
