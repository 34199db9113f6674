"""Half and twice the size, in space and in time, and the shortcuts around them that Wan 2.2 has.

The first frame stands alone in time: one frame of latents at the start, then one for every group.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from models.nn.layers.parameterised import conv
from models.vae.sharded import split_image
from models.vae.video_blocks import FeatureCache, Frames, TimeConv

_SAME = ((1, 1), (1, 1))
_HALVE = ((0, 1), (0, 1))
_FRAMES_ONLY = (3, 1, 1)


class Downsample(nnx.Module):
    """Half the size, padded at the right and bottom edge only; then half the frames but the first.

    Args:
        in_time: whether frames are halved too: each pair with the frame before it becomes one.
    """

    def __init__(self, width: int, *, in_time: bool, **make) -> None:
        self.resample = conv(width, width, (3, 3), strides=2, padding=_HALVE, **make)
        self.time_conv = TimeConv(width, width, _FRAMES_ONLY, stride=2, **make) if in_time else None

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Halve the resolution; of some levels that of time, too."""
        x = split_image(self.resample(x))
        if self.time_conv is None:
            return x
        whole = cache.prepend(x, 1)
        if cache.starts:
            return jnp.concatenate([x[:, :1], self.time_conv(x)], axis=1)
        halved = self.time_conv(whole)
        return cache.pick(x[:, x.shape[1] - halved.shape[1] :], halved)


class Upsample(nnx.Module):
    """Two frames for each but the first, then twice the size: nearest neighbour and convolution.

    Args:
        in_time: whether frames are doubled too. That looks back over two frames, but never at the
            video's first one: for its neighbours it is as if nothing had been there.
    """

    def __init__(self, in_width: int, width: int, *, in_time: bool, **make) -> None:
        self.resample = conv(in_width, width, (3, 3), padding=_SAME, **make)
        self.time_conv = TimeConv(in_width, 2 * in_width, _FRAMES_ONLY, **make) if in_time else None

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Double the resolution; of some levels that of time, too."""
        if self.time_conv is not None:
            alone = 1 if cache.starts else 0
            seen = cache.pick(jnp.zeros_like(x), x)[:, alone:]
            pairs = _in_turn(self.time_conv(cache.prepend(seen, 2)))
            twice = jnp.concatenate([x[:, :alone], pairs], axis=1)
            x = cache.pick(jnp.concatenate([x, x], axis=1), twice)
        return split_image(self.resample(_nearest_twice(x)))


def _in_turn(x: Frames) -> Frames:
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
    """Blocks of positions become channels, and groups of those their mean.

    Args:
        channels: that are left.
        factors: frames and side of a block. Where frames do not come out even, as at the video's
            start, zeros are put in front and count in the mean.
    """
    time, side = factors
    x = jnp.pad(x, ((0, 0), (-x.shape[1] % time, 0), *((0, 0),) * 3))
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames // time, time, height // side, side, width // side, side, -1)
    x = x.transpose(0, 1, 3, 5, 7, 2, 4, 6)
    return x.reshape(*x.shape[:4], channels, -1).mean(axis=-1)


def repeat_up(x: Frames, channels: int, factors: tuple[int, int]) -> Frames:
    """The way back: channels, repeated to be enough, become blocks of positions.

    Args:
        channels: that are left.
        factors: frames and side of a block.
    """
    time, side = factors
    batch, frames, height, width, in_width = x.shape
    x = jnp.repeat(x, channels * time * side * side // in_width, axis=-1)
    x = x.reshape(batch, frames, height, width, channels, time, side, side)
    x = x.transpose(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(batch, frames * time, height * side, width * side, channels)


def to_patches(pixels: Frames, side: int) -> Frames:
    """Squares of pixels as channels: colour, then column, then row."""
    batch, frames, height, width, colours = pixels.shape
    x = pixels.reshape(batch, frames, height // side, side, width // side, side, colours)
    return x.transpose(0, 1, 2, 4, 6, 5, 3).reshape(*x.shape[:3], x.shape[4], -1)


def from_patches(x: Frames, side: int) -> Frames:
    """Channels as squares of pixels, the inverse of `to_patches`."""
    batch, frames, height, width, _ = x.shape
    x = x.reshape(batch, frames, height, width, -1, side, side).transpose(0, 1, 2, 6, 3, 5, 4)
    return x.reshape(batch, frames, height * side, width * side, -1)
