"""LTX-2's video autoencoder: pixels ↔ latents, by convolutions over time, rows and columns.

The first frame stands for itself; levels move pixels into channels and back, and what they move
goes around their convolutions.

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
"""Epsilon of the norms without parameters; fixed in every LTX-2."""
WINDOW = (3, 3, 3)


class Edges(NamedTuple):
    """Values beyond a video's edges: its first and last frames go on in time."""

    causal: bool
    """True if a frame sees those before it alone."""
    sides: str
    """Padding of rows and columns, as NumPy calls it."""


class EdgeConv(nnx.Module):
    """Convolution that keeps frames, rows and columns."""

    def __init__(
        self, width_in: int, width: int, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        self.conv = conv(width_in, width, WINDOW, rngs=rngs, param_dtype=param_dtype)
        self.edges = edges

    def __call__(self, x: Frames) -> Frames:
        """Convolve."""
        time, rows, columns = (size - 1 for size in WINDOW)
        before = time if self.edges.causal else time // 2
        x = jnp.pad(x, ((0, 0), (before, time - before), *((0, 0),) * 3), mode="edge")
        sides = ((rows // 2,) * 2, (columns // 2,) * 2)
        return self.conv(jnp.pad(x, ((0, 0), (0, 0), *sides, (0, 0)), mode=self.edges.sides))


class FramesBlock(nnx.Module):
    """Two convolutions behind norms and SiLU, and what goes around them."""

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
        """Convolve twice."""
        found = self.first(jax.nn.silu(rms(x, EPSILON)))
        found = self.second(jax.nn.silu(rms(found, EPSILON)))
        if self.around is not None and self.around_norm is not None:
            x = self.around(self.around_norm(x))
        return found + x


class Down(nnx.Module):
    """Pixels into channels, around a convolution by means of channels in a row."""

    def __init__(
        self, level: VaeLevel, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        assert level.stride is not None
        self.stride, self.width = level.stride, level.width
        frames, rows, columns = level.stride
        narrow = level.width // (frames * rows * columns)
        self.conv = EdgeConv(level.width_in, narrow, edges, rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Frames) -> Frames:
        """Resample; the first frame comes first again, where frames are to be even in number."""
        x = jnp.concatenate([x[:, : self.stride[0] - 1], x], axis=1)
        around = into_channels(x, self.stride)
        around = around.reshape(*around.shape[:-1], self.width, -1).mean(axis=-1)
        return into_channels(self.conv(x), self.stride) + around


class Up(nnx.Module):
    """Channels into pixels, around a convolution by repeating channels."""

    def __init__(
        self, level: VaeLevel, edges: Edges, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        assert level.stride is not None
        frames, rows, columns = level.stride
        self.stride, self.repeats = level.stride, frames * rows * columns // level.factor
        wide = level.width * level.factor
        out = level.width * frames * rows * columns
        self.conv = EdgeConv(wide, out, edges, rngs=rngs, param_dtype=param_dtype)
        self.residual = level.residual

    def __call__(self, x: Frames) -> Frames:
        """Resample; the first frame is one again."""
        found = into_pixels(self.conv(x), self.stride)
        if self.residual:
            around = into_pixels(x, self.stride)
            found = found + jnp.tile(around, self.repeats)
        return found[:, self.stride[0] - 1 :]


class DownLevel(nnx.Module):
    """Blocks, then the resampling."""

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
        """Run the level."""
        for block in self.blocks:
            x = block(x)
        return x if self.down is None else self.down(x)


class UpLevel(nnx.Module):
    """The resampling, behind a block where the width changes, then blocks."""

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
        """Run the level."""
        for part in (self.enter, self.up, *self.blocks):
            x = x if part is None else part(x)
        return x


class LTX2VideoAutoencoder(nnx.Module):
    """Pixels ↔ latents."""

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
        wide = config.decoder_block_out_channels[-1]
        self.decoder_in = EdgeConv(latent, wide, outward, **kinds)
        self.decoder_mid = nnx.List(
            [block(wide, wide, outward) for _ in range(config.decoder_layers_per_block[-1])]
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
        """Return the mean of the latents of pixels from -1 to 1."""
        patch = self.config.patch_size
        # columns are the slower number of a patch's channel: its axes are turned round
        x = into_channels(pixels.swapaxes(2, 3), (1, patch, patch)).swapaxes(2, 3)
        x = self.encoder_in(x)
        for part in (*self.down, *self.encoder_mid):
            x = part(x)
        return self.encoder_out(jax.nn.silu(rms(x, EPSILON)))[..., :-1]

    def decode(self, latents: Latents) -> Frames:
        """Return the pixels of latents, about -1 to 1."""
        x = self.decoder_in(latents)
        for part in (*self.decoder_mid, *self.up):
            x = part(x)
        x = self.decoder_out(jax.nn.silu(rms(x, EPSILON)))
        patch = self.config.patch_size
        return into_pixels(x.swapaxes(2, 3), (1, patch, patch)).swapaxes(2, 3)

    def decode_in_tiles(self, latents: Latents, tiling: Tiling | None) -> Frames:
        """Decode as `decode`, in such tiles of pixels; None: as a whole.

        Raises: ValueError: tiles that are not whole latents.
        """
        if tiling is None:
            return self.decode(latents)
        _, *sides = self.config.downsampling
        return in_tiles(self.decode, latents, tiling.smaller(math.lcm(*sides)), tiling)

    def normalised(
        self, latents: Float[Array, "*batch channels"]
    ) -> Float[Array, "*batch channels"]:
        """Return latents as the transformer has them, float32."""
        wide, scale = latents.astype(jnp.float32), self.config.scaling_factor
        return (wide - self.latents_mean[...]) * scale / self.latents_std[...]

    def denormalised(
        self, latents: Float[Array, "*batch channels"]
    ) -> Float[Array, "*batch channels"]:
        """Return latents as the autoencoder has them."""
        scale = self.config.scaling_factor
        return latents * self.latents_std[...] / scale + self.latents_mean[...]


def into_channels(x: Frames, stride: tuple[int, int, int]) -> Frames:
    """Move frames, rows and columns of each patch into channels: channel, frame, row, column."""
    frames, rows, columns = stride
    batch, long, high, wide, width = x.shape
    x = x.reshape(
        batch, long // frames, frames, high // rows, rows, wide // columns, columns, width
    )
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(*x.shape[:4], -1)


def into_pixels(x: Frames, stride: tuple[int, int, int]) -> Frames:
    """Compute the inverse of `into_channels`."""
    frames, rows, columns = stride
    batch, long, high, wide, _ = x.shape
    x = x.reshape(batch, long, high, wide, -1, frames, rows, columns)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, long * frames, high * rows, wide * columns, -1)
