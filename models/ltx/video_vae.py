"""Video autoencoder of LTX-2: pixels ↔ latents, by convolutions over time, rows and columns.

The first frame has a latent frame to itself. Levels resample by moving pixels into channels and
back, with a shortcut around their convolutions.

Source: HaCohen et al. 2026 (LTX-2), section 3.1; diffusers autoencoder_kl_ltx2.py.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.ltx.video_vae_config import PADDINGS, LTX2VideoVaeConfig, VaeLevel
from models.nn.layers.norms import LayerNorm, rms
from models.nn.layers.parameterised import Kinds, conv, linear
from models.vae.config import Tiling
from models.vae.tiling import in_tiles

Frames = Float[Array, "batch _frames _rows _columns _channels"]
Latents = Float[Array, "batch _frames _rows _columns latent_channels"]

EPSILON = 1e-8
"""Epsilon of the norms without parameters; the same in every LTX-2."""
WINDOW = (3, 3, 3)


class Edges(NamedTuple):
    """Padding modes of convolutions; over time, the first and last frames are repeated."""

    causal: bool
    """Whether a frame depends on earlier frames only."""
    sides: str
    """Padding of rows and columns, as a NumPy mode."""


class EdgeConv(nnx.Module):
    """Convolution that preserves the number of frames, rows and columns."""

    def __init__(
        self, width_in: int, width: int, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        self.conv = conv(width_in, width, WINDOW, rngs=rngs, param_dtype=param_dtype)
        self.edges = edges

    def __call__(self, x: Frames) -> Frames:
        """Pad the video's edges, and convolve."""
        time, rows, columns = (size - 1 for size in WINDOW)
        before = time if self.edges.causal else time // 2
        x = jnp.pad(x, ((0, 0), (before, time - before), *((0, 0),) * 3), mode="edge")
        sides = ((rows // 2,) * 2, (columns // 2,) * 2)
        return self.conv(jnp.pad(x, ((0, 0), (0, 0), *sides, (0, 0)), mode=self.edges.sides))


class FramesBlock(nnx.Module):
    """Residual block: two convolutions, each after a norm and SiLU, plus a shortcut."""

    def __init__(
        self,
        width_in: int,
        width: int,
        edges: Edges,
        epsilon: float,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.first = EdgeConv(width_in, width, edges, **kinds)
        self.second = EdgeConv(width, width, edges, **kinds)
        changes = width_in != width
        self.around_norm = LayerNorm(width_in, epsilon, rngs=rngs) if changes else None
        self.around = linear(width_in, width, ("conv_in", "conv_out"), **kinds) if changes else None

    def __call__(self, x: Frames) -> Frames:
        """Apply the two convolutions to a video, and add the shortcut."""
        output = self.first(jax.nn.silu(rms(x, EPSILON)))
        output = self.second(jax.nn.silu(rms(output, EPSILON)))
        if self.around is not None and self.around_norm is not None:
            x = self.around(self.around_norm(x))
        return output + x


class Down(nnx.Module):
    """Downsampling of a video: moves pixels into channels; the shortcut averages channels."""

    def __init__(
        self, level: VaeLevel, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        assert level.stride is not None
        self.stride, self.width = level.stride, level.width
        frames, rows, columns = level.stride
        narrow = level.width // (frames * rows * columns)
        self.conv = EdgeConv(level.width_in, narrow, edges, rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Frames) -> Frames:
        """Downsample a video; repeats the first frame so that frames divide by the stride."""
        x = jnp.concatenate([x[:, : self.stride[0] - 1], x], axis=1)
        shortcut = into_channels(x, self.stride)
        shortcut = shortcut.reshape(*shortcut.shape[:-1], self.width, -1).mean(axis=-1)
        return into_channels(self.conv(x), self.stride) + shortcut


class Up(nnx.Module):
    """Upsampling of a video: moves channels into pixels; the shortcut repeats channels."""

    def __init__(
        self, level: VaeLevel, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        assert level.stride is not None
        frames, rows, columns = level.stride
        self.stride, self.repeats = level.stride, frames * rows * columns // level.factor
        width = level.width * level.factor
        out = level.width * frames * rows * columns
        self.conv = EdgeConv(width, out, edges, rngs=rngs, param_dtype=param_dtype)
        self.residual = level.residual

    def __call__(self, x: Frames) -> Frames:
        """Upsample a video, and drop the copies of the first frame."""
        output = into_pixels(self.conv(x), self.stride)
        if self.residual:
            shortcut = into_pixels(x, self.stride)
            output = output + jnp.tile(shortcut, self.repeats)
        return output[:, self.stride[0] - 1 :]


class DownLevel(nnx.Module):
    """Encoder level: residual blocks, then downsampling."""

    def __init__(
        self,
        level: VaeLevel,
        edges: Edges,
        epsilon: float,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width = level.width_in
        self.blocks = nnx.List(
            [FramesBlock(width, width, edges, epsilon, **kinds) for _ in range(level.layers)]
        )
        self.down = None if level.stride is None else Down(level, edges, **kinds)

    def __call__(self, x: Frames) -> Frames:
        """Apply the level's blocks, then downsample."""
        for block in self.blocks:
            x = block(x)
        return x if self.down is None else self.down(x)


class UpLevel(nnx.Module):
    """Decoder level: a block if the width changes, upsampling, then residual blocks."""

    def __init__(
        self,
        level: VaeLevel,
        edges: Edges,
        epsilon: float,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, before = level.width, level.width_in // level.factor
        self.enter = (
            FramesBlock(before, width, edges, epsilon, **kinds) if before != width else None
        )
        self.up = None if level.stride is None else Up(level, edges, **kinds)
        self.blocks = nnx.List(
            [FramesBlock(width, width, edges, epsilon, **kinds) for _ in range(level.layers)]
        )

    def __call__(self, x: Frames) -> Frames:
        """Upsample, then apply the level's blocks."""
        for part in (self.enter, self.up, *self.blocks):
            x = x if part is None else part(x)
        return x


class LTX2VideoAutoencoder(nnx.Module):
    """Video autoencoder of LTX-2, between pixels and latents."""

    def __init__(
        self, config: LTX2VideoVaeConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        inward = Edges(config.encoder_causal, PADDINGS[config.encoder_spatial_padding_mode])
        outward = Edges(config.decoder_causal, PADDINGS[config.decoder_spatial_padding_mode])
        block = partial(FramesBlock, epsilon=config.resnet_norm_eps, **kinds)
        latent, deepest = config.latent_channels, config.block_out_channels[-1]
        self.config = config
        self.encoder_in = EdgeConv(config.patched, latent, inward, **kinds)
        self.down = nnx.List(
            [DownLevel(level, inward, config.resnet_norm_eps, **kinds) for level in config.down]
        )
        self.encoder_mid = nnx.List(
            [block(deepest, deepest, inward) for _ in range(config.layers_per_block[-1])]
        )
        self.encoder_out = EdgeConv(deepest, latent + 1, inward, **kinds)
        decoder_width = config.decoder_block_out_channels[-1]
        self.decoder_in = EdgeConv(latent, decoder_width, outward, **kinds)
        self.decoder_mid = nnx.List(
            [
                block(decoder_width, decoder_width, outward)
                for _ in range(config.decoder_layers_per_block[-1])
            ]
        )
        self.up = nnx.List(
            [UpLevel(level, outward, config.resnet_norm_eps, **kinds) for level in config.up]
        )
        pixels = config.out_channels * config.patch_size**2
        self.decoder_out = EdgeConv(config.up[-1].width, pixels, outward, **kinds)
        self.latents_mean, self.latents_std = (
            nnx.Param(jnp.full(latent, value, param_dtype), axes=(None,)) for value in (0, 1)
        )

    def encode(self, pixels: Frames) -> Latents:
        """Return the mean of the latents of pixels in [-1, 1]."""
        patch = self.config.patch_size
        # columns vary slower than rows within a patch's channels, so swap the axes
        x = into_channels(pixels.swapaxes(2, 3), (1, patch, patch)).swapaxes(2, 3)
        x = self.encoder_in(x)
        for part in (*self.down, *self.encoder_mid):
            x = part(x)
        return self.encoder_out(jax.nn.silu(rms(x, EPSILON)))[..., :-1]

    def decode(self, latents: Latents) -> Frames:
        """Decode latents to pixels, approximately in [-1, 1]."""
        x = self.decoder_in(latents)
        for part in (*self.decoder_mid, *self.up):
            x = part(x)
        x = self.decoder_out(jax.nn.silu(rms(x, EPSILON)))
        patch = self.config.patch_size
        return into_pixels(x.swapaxes(2, 3), (1, patch, patch)).swapaxes(2, 3)

    def decode_in_tiles(self, latents: Latents, tiling: Tiling | None) -> Frames:
        """Decode in tiles of pixels; None decodes without tiles.

        Raises: ValueError: tiles that are not whole latents.
        """
        if tiling is None:
            return self.decode(latents)
        _, *sides = self.config.downsampling
        return in_tiles(self.decode, latents, tiling.smaller(math.lcm(*sides)), tiling)

    def normalised(
        self, latents: Float[Array, "*batch channels"]
    ) -> Float[Array, "*batch channels"]:
        """Normalize latents for the transformer, float32."""
        values, scale = latents.astype(jnp.float32), self.config.scaling_factor
        return (values - self.latents_mean[...]) * scale / self.latents_std[...]

    def denormalised(
        self, latents: Float[Array, "*batch channels"]
    ) -> Float[Array, "*batch channels"]:
        """Undo `normalised`: convert the transformer's latents to the autoencoder's."""
        scale = self.config.scaling_factor
        return latents * self.latents_std[...] / scale + self.latents_mean[...]


def into_channels(x: Frames, stride: tuple[int, int, int]) -> Frames:
    """Move frames, rows and columns of each patch into channels: channel, frame, row, column."""
    frames, rows, columns = stride
    batch, length, height, columns_in, width = x.shape
    x = x.reshape(
        batch, length // frames, frames, height // rows, rows, columns_in // columns, columns, width
    )
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(*x.shape[:4], -1)


def into_pixels(x: Frames, stride: tuple[int, int, int]) -> Frames:
    """Undo `into_channels`: move channels into frames, rows and columns."""
    frames, rows, columns = stride
    batch, length, height, columns_in, _ = x.shape
    x = x.reshape(batch, length, height, columns_in, -1, frames, rows, columns)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, length * frames, height * rows, columns_in * columns, -1)
