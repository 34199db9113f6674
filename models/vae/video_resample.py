"""Resampling by two in space and time, and Wan 2.2's shortcuts around it.

The first frame is not merged in time: one frame of latents at the start, then one per group.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from models.nn.layers.parameterised import conv
from models.vae.sharded import split_image
from models.vae.video_blocks import FeatureCache, Frames, TimeConv

_SAME = ((1, 1), (1, 1))
_HALVE = ((0, 1), (0, 1))
_FRAMES_ONLY = (3, 1, 1)


class Downsample(nnx.Module):
    """Halve a video's size, padded at right and bottom only; then the frames except the first.

    Args:
        in_time: whether frames are halved too: each pair with the frame before it becomes one.
    """

    def __init__(self, width: int, *, in_time: bool, **make: Any) -> None:
        self.resample = conv(width, width, (3, 3), strides=2, padding=_HALVE, **make)
        self.time_conv = TimeConv(width, width, _FRAMES_ONLY, stride=2, **make) if in_time else None

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Halve the resolution, and at some levels the frames."""
        x = split_image(self.resample(x))
        if self.time_conv is None:
            return x
        extended = cache.prepend(x, 1)
        if cache.starts:
            return jnp.concatenate([x[:, :1], self.time_conv(x)], axis=1)
        halved = self.time_conv(extended)
        return cache.pick(x[:, x.shape[1] - halved.shape[1] :], halved)


class Upsample(nnx.Module):
    """Double a video's frames except the first, then the size: nearest neighbour, convolution.

    Args:
        in_time: whether frames are doubled too. This looks back over two frames, but ignores the
            video's first frame.
    """

    def __init__(self, in_width: int, width: int, *, in_time: bool, **make: Any) -> None:
        self.resample = conv(in_width, width, (3, 3), padding=_SAME, **make)
        self.time_conv = TimeConv(in_width, 2 * in_width, _FRAMES_ONLY, **make) if in_time else None

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Double the resolution, and at some levels the frames."""
        if self.time_conv is not None:
            skipped = 1 if cache.starts else 0
            later = cache.pick(jnp.zeros_like(x), x)[:, skipped:]
            pairs = _interleaved(self.time_conv(cache.prepend(later, 2)))
            twice = jnp.concatenate([x[:, :skipped], pairs], axis=1)
            x = cache.pick(jnp.concatenate([x, x], axis=1), twice)
        return split_image(self.resample(_nearest_twice(x)))


def _interleaved(x: Frames) -> Frames:
    """Split each frame's channels into two frames: the first half, then the second."""
    batch, frames, height, width, channels = x.shape
    halves = x.reshape(batch, frames, height, width, 2, channels // 2)
    return halves.transpose(0, 1, 4, 2, 3, 5).reshape(
        batch, 2 * frames, height, width, channels // 2
    )


def _nearest_twice(x: Frames) -> Frames:
    batch, frames, height, width, channels = x.shape
    doubled = (batch, frames, height, 2, width, 2, channels)
    wide = jnp.broadcast_to(x[:, :, :, None, :, None], doubled)
    return wide.reshape(batch, frames, 2 * height, 2 * width, channels)


def average_down(x: Frames, channels: int, factors: tuple[int, int]) -> Frames:
    """Move blocks of positions to channels, and average groups of channels.

    Args:
        channels: number of channels of the result.
        factors: frames and side of a block. If frames do not divide evenly, as at the video's
            start, zeros are prepended and count in the mean.
    """
    time, side = factors
    x = jnp.pad(x, ((0, 0), (-x.shape[1] % time, 0), *((0, 0),) * 3))
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames // time, time, height // side, side, width // side, side, -1)
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(*x.shape[:4], channels, -1).mean(axis=-1)


def repeat_up(x: Frames, channels: int, factors: tuple[int, int]) -> Frames:
    """Repeat channels, and move them to blocks of positions: the reverse of `average_down`.

    Args:
        channels: number of channels of the result.
        factors: frames and side of a block.
    """
    time, side = factors
    batch, frames, height, width, in_width = x.shape
    x = jnp.repeat(x, channels * time * side * side // in_width, axis=-1)
    x = x.reshape(batch, frames, height, width, channels, time, side, side)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, frames * time, height * side, width * side, channels)


def to_patches(pixels: Frames, side: int) -> Frames:
    """Move squares of pixels to channels, ordered by colour, then column, then row."""
    batch, frames, height, width, colours = pixels.shape
    x = pixels.reshape(batch, frames, height // side, side, width // side, side, colours)
    return x.transpose(0, 1, 2, 4, 6, 5, 3).reshape(*x.shape[:3], x.shape[4], -1)


def from_patches(x: Frames, side: int) -> Frames:
    """Move channels back to squares of pixels: the inverse of `to_patches`."""
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames, height, width, -1, side, side).transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, frames, height * side, width * side, -1)
