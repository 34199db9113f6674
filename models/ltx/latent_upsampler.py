"""Latent upsampler of LTX-2: enlarges rows and columns of a video's latents.

Inputs and outputs are unnormalized latents of the autoencoder, not those of the transformer.

Source: HaCohen et al. 2026 (LTX-2), section 3; diffusers pipelines/ltx2/latent_upsampler.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.ltx.latent_upsampler_config import GROUPS, LatentUpsamplerConfig
from models.ltx.video_vae import Frames, Latents, into_pixels
from models.nn.layers.norms import GroupNorm
from models.nn.layers.parameterised import Conv, Kinds, conv

EPSILON = 1e-5
BINOMIAL = np.array([1, 4, 6, 4, 1], np.float32) / 16
"""Weights of the blur of rows and columns before decimation."""


class VideoGroupNorm(GroupNorm):
    """Group normalization over all frames of a video."""

    def __call__(self, x: Frames) -> Frames:
        """Normalize each group of channels over all frames."""
        return super().__call__(x.reshape(len(x), -1, *x.shape[3:])).reshape(x.shape)


class VideoBlock(nnx.Module):
    """Residual block: two convolutions with norms, plus the input."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.first, self.second = (_conv(width, width, **kinds) for _ in range(2))
        self.first_norm, self.second_norm = (
            VideoGroupNorm(width, GROUPS, EPSILON, **kinds) for _ in range(2)
        )

    def __call__(self, x: Frames) -> Frames:
        """Apply the two convolutions to video latents, and add the input."""
        output = jax.nn.silu(self.first_norm(self.first(x)))
        return jax.nn.silu(self.second_norm(self.second(output)) + x)


class LatentUpsampler(nnx.Module):
    """Network that enlarges the rows and columns of video latents."""

    def __init__(
        self, config: LatentUpsamplerConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        width, times = config.mid_channels, config.scale.numerator
        self.config = config
        self.enter = _conv(config.in_channels, width, **kinds)
        self.enter_norm = VideoGroupNorm(width, GROUPS, EPSILON, **kinds)
        self.before, self.behind = (
            nnx.List([VideoBlock(width, **kinds) for _ in range(config.num_blocks_per_stage)])
            for _ in range(2)
        )
        self.up = conv(width, times**2 * width, (3, 3), padding=((1, 1),) * 2, **kinds)
        self.leave = _conv(width, config.in_channels, **kinds)

    def __call__(self, latents: Latents) -> Latents:
        """Enlarge rows and columns of video latents."""
        x = jax.nn.silu(self.enter_norm(self.enter(latents)))
        for block in self.before:
            x = block(x)
        x = self._enlarged(x)
        for block in self.behind:
            x = block(x)
        return self.leave(x)

    def _enlarged(self, x: Frames) -> Frames:
        """Enlarge each frame of video latents: convolve, move channels to pixels, and decimate."""
        scale, (batch, frames) = self.config.scale, x.shape[:2]
        output = self.up(x.reshape(-1, *x.shape[2:]))[:, None]
        output = into_pixels(output, (1, scale.numerator, scale.numerator))[:, 0]
        output = _thinned(output, scale.denominator)
        return output.reshape(batch, frames, *output.shape[1:])


def _conv(width_in: int, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> Conv:
    """Build a zero-padded convolution over time, rows and columns."""
    padding = ((1, 1),) * 3
    return conv(width_in, width, (3, 3, 3), padding=padding, rngs=rngs, param_dtype=param_dtype)


def _thinned(
    x: Float[Array, "batch rows columns channels"], stride: int
) -> Float[Array, "batch _rows _columns channels"]:
    """Decimate an image: blur it, and return every n-th row and column."""
    if stride == 1:
        return x
    width, taps = x.shape[-1], len(BINOMIAL)
    kernel = jnp.asarray(np.outer(BINOMIAL, BINOMIAL), x.dtype)[:, :, None, None]
    return jax.lax.conv_general_dilated(
        x,
        jnp.broadcast_to(kernel, (taps, taps, 1, width)),
        window_strides=(stride, stride),
        padding=((taps // 2,) * 2,) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=width,
    )
