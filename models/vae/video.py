"""Video autoencoder of Wan 2.1 and 2.2: diffusers' AutoencoderKLWan, channels last.

A video of 1 + 4k frames becomes 1 + k frames of latents. It is processed in chunks with a feature
cache, so that activation memory does not grow with its length. The results equal those of the whole
video at once.

Source: Wan 2025, section 4.1, as diffusers' `AutoencoderKLWan` computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

from models.interface.finite import FiniteRecords, collecting_records, merge_records
from models.nn.attention.attention import CrossAttention
from models.nn.layers.parameterised import linear
from models.vae.sharded import attend_by_positions, image_split_layout, split_image
from models.vae.video_blocks import (
    CachedFeatures,
    FeatureCache,
    FrameAttention,
    Frames,
    ResidualBlock,
    RmsNorm,
    VideoMidBlock,
    causal_conv,
    run,
)
from models.vae.video_config import VideoVaeConfig
from models.vae.video_resample import (
    Downsample,
    Upsample,
    average_down,
    from_patches,
    repeat_up,
    to_patches,
)

CHUNK = 4
"""Frames that are encoded at once after the first, for any compression in time."""

Pass = Callable[[Frames, FeatureCache], Frames]
"""Function of a chunk of frames and the cache of those before."""


class VideoAutoencoder(nnx.Module):
    """Autoencoder of video pixels in [-1, 1] and latents.

    Latents are unnormalized: the pipeline normalizes them by the config's `latents_mean` and
    `latents_std`.
    """

    def __init__(
        self,
        config: VideoVaeConfig,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: CrossAttention = attend_by_positions,
    ) -> None:
        self.config = config
        make: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        axes = ("conv_in", "conv_out")
        self.encoder = self.make_encoder(config, attention=attention, **make)
        self.quant_conv = linear(2 * config.z_dim, 2 * config.z_dim, axes, **make)
        self.post_quant_conv = linear(config.z_dim, config.z_dim, axes, **make)
        self.decoder = self.make_decoder(config, attention=attention, **make)

    @staticmethod
    def make_encoder(config: VideoVaeConfig, **make: Any) -> Pass:
        """Build the encoder from patches of frames to moments."""
        return VideoEncoder(config, **make)

    @staticmethod
    def make_decoder(config: VideoVaeConfig, **make: Any) -> Pass:
        """Build the decoder from latents to patches of frames."""
        return VideoDecoder(config, **make)

    def encode(
        self, pixels: Float[Array, "batch frames height width colours"]
    ) -> tuple[Float[Array, "batch f h w latent"], Float[Array, "batch f h w latent"]]:
        """Return mean and log-variance, clipped to [-30, 20]: the first frame, then groups of four.

        Frames after the last whole group are dropped.

        Raises:
            ValueError: more than two halvings in time, which four frames do not allow.
        """
        return self.posterior(self.moments(pixels))

    def moments(
        self, pixels: Float[Array, "batch frames height width colours"]
    ) -> Float[Array, "batch f h w moments"]:
        """Encode pixels to mean and unclipped log-variance in one array. Raises: as `encode`."""
        if pixels.shape[1] > CHUNK and sum(self.config.downsamples) > 2:
            raise ValueError(
                f"temperal_downsample {self.config.temperal_downsample} halves four frames more "
                "than twice: this VAE decodes videos, but encodes single frames only"
            )
        encoded_frames = 1 + (pixels.shape[1] - 1) // CHUNK * CHUNK
        length = CHUNK // 2 ** sum(self.config.downsamples)
        factor = self.config.downsampling
        with image_split_layout(pixels.shape[2] // factor, pixels.shape[3] // factor):
            return in_chunks(self._moments, pixels[:, :encoded_frames], CHUNK, length)

    def posterior(
        self, moments: Float[Array, "batch f h w moments"]
    ) -> tuple[Float[Array, "batch f h w latent"], Float[Array, "batch f h w latent"]]:
        """Split moments into the posterior's mean and clipped log-variance."""
        mean, log_variance = jnp.split(moments, 2, axis=-1)
        return mean, jnp.clip(log_variance, -30.0, 20.0)

    def encode_whole(
        self, pixels: Float[Array, "batch frames height width colours"]
    ) -> tuple[Float[Array, "batch f h w latent"], Float[Array, "batch f h w latent"]]:
        """Encode all frames at once, for training: faster, but memory grows with the video."""
        return self.posterior(self._moments(pixels, FeatureCache()))

    def decode(
        self,
        latents: Float[Array, "batch f h w latent"],
        finish: Callable[[Frames], Array] = lambda pixels: pixels,
    ) -> Shaped[Array, "batch frames ..."]:
        """Return pixels [batch, frames, height, width, colours], clipped to [-1, 1].

        Frames are decoded one latent frame at a time.

        Args:
            finish: converts each chunk's pixels before they are concatenated, for example to bytes,
                which take a quarter of the memory. Must keep each pixel's position.
        """

        def finished(latents: Frames, cache: FeatureCache) -> Array:
            pixels = from_patches(self._patches(latents, cache), self.config.patch)
            return finish(jnp.clip(split_image(pixels), -1.0, 1.0))

        return self._frame_by_frame(finished, latents)

    def patches(
        self, latents: Float[Array, "batch f h w latent"]
    ) -> Float[Array, "batch frames rows columns channels"]:
        """Decode to patches instead of pixels, not clipped."""
        return self._frame_by_frame(self._patches, latents)

    def decode_whole(
        self, latents: Float[Array, "batch f h w latent"]
    ) -> Float[Array, "batch frames height width colours"]:
        """Decode all frames at once, not clipped, for training."""
        return from_patches(self._patches(latents, FeatureCache()), self.config.patch)

    def _moments(self, pixels: Frames, cache: FeatureCache) -> Frames:
        patches = split_image(to_patches(split_image(pixels), self.config.patch))
        return self.quant_conv(self.encoder(patches, cache))

    def _patches(self, latents: Frames, cache: FeatureCache) -> Frames:
        return self.decoder(self.post_quant_conv(split_image(latents)), cache)

    def _frame_by_frame(self, apply: Pass, latents: Frames) -> Array:
        with image_split_layout(*latents.shape[2:4]):
            return in_chunks(apply, latents, 1, 2 ** sum(self.config.upsamples))


def in_chunks(apply: Pass, x: Frames, size: int, length: int) -> Array:
    """Apply a function to the first frame, then to chunks of frames; concatenate the results.

    Each result is written in place: only that array grows with the video. The first frame runs as a
    chunk with blanks before it, at the cost of a chunk. So there is one program instead of two: a
    TPU's compiler takes seconds for each convolution.

    Args:
        size: frames of a chunk.
        length: frames that `apply` returns for a chunk; for the first frame it returns one.
    """
    chunks = 1 + (x.shape[1] - 1) // size
    if chunks == 1:
        return apply(x[:, :1], FeatureCache())
    x = split_image(jnp.pad(x, ((0, 0), (size - 1, 0), *((0, 0),) * (x.ndim - 2))))

    def run_chunk(
        earlier: CachedFeatures | None, number: Array
    ) -> tuple[CachedFeatures, Array, FiniteRecords]:
        cache = FeatureCache(earlier, number == 0)
        chunk = jax.lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
        with collecting_records() as notes:
            result = apply(chunk, cache)
        return cache.features, result, notes

    def put(carry: tuple[CachedFeatures, Array, FiniteRecords], number: Array) -> tuple[Any, None]:
        earlier, out, finite = carry
        cache_now, result, notes = run_chunk(earlier, number)
        finite = {part: finite[part] & is_finite for part, is_finite in notes.items()}
        # The first chunk's last frame goes first; the frames after it are overwritten.
        result = jnp.where(number == 0, jnp.flip(result, axis=1), result)
        place = jnp.maximum(0, 1 + (number - 1) * length)
        out = jax.lax.dynamic_update_slice_in_dim(out, result, place, axis=1)
        return (cache_now, split_image(out), finite), None

    first = jax.eval_shape(partial(run_chunk, None), jax.ShapeDtypeStruct((), jnp.int32))
    cache_now, result, notes = first
    nothing = tuple(split_image(jnp.zeros(leaf.shape, leaf.dtype)) for leaf in cache_now)
    frames = 1 + (chunks - 1) * length
    frames_out = jnp.zeros((len(x), frames, *result.shape[2:]), result.dtype)
    start = (nothing, split_image(frames_out), dict.fromkeys(notes, jnp.bool_(True)))
    (_, out, finite), _ = jax.lax.scan(put, start, jnp.arange(chunks))
    merge_records(finite)
    return out


class VideoEncoder(nnx.Module):
    """Encoder from patches to moments [batch, f, h, w, 2 · latent]."""

    def __init__(self, config: VideoVaeConfig, *, attention: CrossAttention, **make: Any) -> None:
        widths = config.encoder_widths
        self.conv_in = causal_conv(config.in_channels, widths[0], **make)
        if config.is_residual:
            self.down_blocks = _shortcut_down_blocks(config, **make)
        else:
            self.down_blocks = _plain_down_layers(config, attention=attention, **make)
        self.mid_block = VideoMidBlock(widths[-1], attention=attention, **make)
        self.norm_out = RmsNorm(widths[-1], 3, **make)
        self.conv_out = causal_conv(widths[-1], 2 * config.z_dim, **make)

    def __call__(self, patches: Frames, cache: FeatureCache) -> Frames:
        x = run(self.down_blocks, self.conv_in(cache.prepend(patches, 2)), cache)
        x = self.mid_block(x, cache)
        return self.conv_out(cache.prepend(nnx.silu(self.norm_out(x)), 2))


class VideoDecoder(nnx.Module):
    """Decoder from latents to patches, not clipped."""

    def __init__(self, config: VideoVaeConfig, *, attention: CrossAttention, **make: Any) -> None:
        widths = config.decoder_widths
        self.conv_in = causal_conv(config.z_dim, widths[0], **make)
        self.mid_block = VideoMidBlock(widths[0], attention=attention, **make)
        self.up_blocks = _up_blocks(config, **make)
        self.norm_out = RmsNorm(widths[-1], 3, **make)
        self.conv_out = causal_conv(widths[-1], config.out_channels, **make)

    def __call__(self, latents: Frames, cache: FeatureCache) -> Frames:
        x = self.mid_block(self.conv_in(cache.prepend(latents, 2)), cache)
        x = run(self.up_blocks, x, cache)
        return self.conv_out(cache.prepend(nnx.silu(self.norm_out(x)), 2))


def _plain_down_layers(
    config: VideoVaeConfig, *, attention: CrossAttention, **make: Any
) -> nnx.List[nnx.Module]:
    """Build Wan 2.1's down blocks as one list of layers, as its checkpoints have them."""
    widths = config.encoder_widths
    layers: list[nnx.Module] = []
    for level, (in_width, width) in enumerate(pairwise(widths)):
        for depth in range(config.num_res_blocks):
            layers.append(ResidualBlock(width if depth else in_width, width, **make))
            if 0.5**level in config.attn_scales:
                layers.append(FrameAttention(width, attention=attention, **make))
        if level < config.halvings:
            layers.append(Downsample(width, in_time=config.downsamples[level], **make))
    return nnx.List(layers)


def _shortcut_down_blocks(config: VideoVaeConfig, **make: Any) -> nnx.List[nnx.Module]:
    widths, resampled = config.encoder_widths, (*config.downsamples, None)
    return nnx.List(
        ShortcutDownBlock(in_width, width, config.num_res_blocks, in_time=in_time, **make)
        for in_width, width, in_time in zip(widths[:-1], widths[1:], resampled, strict=True)
    )


def _up_blocks(config: VideoVaeConfig, **make: Any) -> nnx.List[nnx.Module]:
    """Build the decoder's up blocks.

    2.1 halves the width where it doubles the size; in 2.2 the next block does.
    """
    widths, resampled = config.decoder_widths, (*config.upsamples, None)
    kind, shrink = (ShortcutUpBlock, 1) if config.is_residual else (VideoUpBlock, 2)
    return nnx.List(
        kind(
            in_width // (shrink if level else 1),
            width,
            config.num_res_blocks + 1,
            in_time=in_time,
            **make,
        )
        for level, (in_width, width, in_time) in enumerate(
            zip(widths[:-1], widths[1:], resampled, strict=True)
        )
    )


class ShortcutDownBlock(nnx.Module):
    """Residual blocks, then halved size, plus a shortcut of means (Wan 2.2).

    Args:
        in_time: whether frames are halved with the size; None: neither is.
    """

    def __init__(
        self, in_width: int, width: int, depth: int, *, in_time: bool | None, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, **make)
        self.resample = None if in_time is None else Downsample(width, in_time=in_time, **make)
        self.factors = factors_of(in_time)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        hidden = run(self.resnets, x, cache)
        if self.resample is not None:
            hidden = self.resample(hidden, cache)
        return split_image(hidden + average_down(cache.blanked(x), hidden.shape[-1], self.factors))


class VideoUpBlock(nnx.Module):
    """Residual blocks, then doubled size and halved width (Wan 2.1).

    Args:
        in_time: whether frames are doubled with the size; None: neither is.
    """

    def __init__(
        self, in_width: int, width: int, depth: int, *, in_time: bool | None, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, **make)
        self.resample = (
            None if in_time is None else Upsample(width, width // 2, in_time=in_time, **make)
        )

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        x = run(self.resnets, x, cache)
        return x if self.resample is None else self.resample(x, cache)


class ShortcutUpBlock(nnx.Module):
    """Residual blocks, then doubled size, plus a shortcut of the repeated input (Wan 2.2).

    Args:
        in_time: whether frames are doubled with the size; None: neither is.
    """

    def __init__(
        self, in_width: int, width: int, depth: int, *, in_time: bool | None, **make: Any
    ) -> None:
        self.resnets = _resnets(in_width, width, depth, **make)
        self.resample = None if in_time is None else Upsample(width, width, in_time=in_time, **make)
        self.factors = factors_of(in_time)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        hidden = run(self.resnets, x, cache)
        if self.resample is None:
            return hidden
        hidden = self.resample(hidden, cache)
        # The video's first frame is not doubled: only its last repetition is used.
        past = repeat_up(x, hidden.shape[-1], self.factors)
        return split_image(hidden + past[:, past.shape[1] - hidden.shape[1] :])


def factors_of(in_time: bool | None) -> tuple[int, int]:
    """Return the frames and the side of the positions that a resampling merges into one."""
    return (2 if in_time else 1), (1 if in_time is None else 2)


def _resnets(in_width: int, width: int, depth: int, **make: Any) -> nnx.List[nnx.Module]:
    return nnx.List(ResidualBlock(width if i else in_width, width, **make) for i in range(depth))


__all__ = ["VideoAutoencoder", "VideoVaeConfig"]
