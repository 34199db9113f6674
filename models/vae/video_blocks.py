"""Layers of the video autoencoder that keep the size, and the cache of earlier frames.

Time is causal: a frame depends on itself and the frames before it. So a video can run in chunks of
frames, if each layer that looks back receives the last frames of the chunk before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import CrossAttention
from models.nn.layers.parameterised import conv, linear
from models.vae.sharded import replicated, split_image, split_positions

Frames = Float[Array, "batch _frames _height _width _channels"]
"""Feature maps. Most layers change some of these sizes, so only the batch has a fixed name."""

Kernel = Float[Array, "_time _rows _columns _in _out"]

CachedFeatures = tuple[Array, ...]
"""Last input frames of every layer that looks back, in the order in which the layers run."""


class FeatureCache:
    """Cache of the layers' earlier frames in one pass, and of the frames for the next pass.

    A video starts with a single frame, and three ways give the same results: a pass over that frame
    alone, one over the whole video, or one over a full chunk with blanks before the frame. The last
    lets one program run all chunks.

    Args:
        earlier: features of the pass before; None: there was none.
        is_first: whether this is a chunk with only its last frame; None: one of the other two ways,
            or a later chunk.
    """

    def __init__(
        self, earlier: CachedFeatures | None = None, is_first: Bool[Array, ""] | None = None
    ) -> None:
        self.starts = earlier is None and is_first is None
        """Whether the video's first frame is the first of this pass."""
        self._is_first = is_first
        self._earlier = None if earlier is None else iter(earlier)
        self._features: list[Array] = []

    @property
    def features(self) -> CachedFeatures:
        """Features of this pass that the next pass reads."""
        return tuple(self._features)

    def prepend(self, x: Frames, count: int) -> Frames:
        """Prepend the `count` frames before `x`, or zeros at the video's start; store the last."""
        if self._earlier is None:
            before = jnp.zeros_like(x, shape=(x.shape[0], count, *x.shape[2:]))
        else:
            before = next(self._earlier)
        x = split_image(jnp.concatenate([before, self.blanked(x)], axis=1))
        self._features.append(split_image(x[:, x.shape[1] - count :]))
        return x

    def blanked(self, x: Frames) -> Frames:
        """Set all but the last frame of a first chunk to zero; return other chunks unchanged."""
        is_last = jnp.arange(x.shape[1]) == x.shape[1] - 1
        return self.pick(jnp.where(is_last[:, None, None, None], x, 0), x)

    def pick(self, first: Frames, later: Frames) -> Frames:
        """Select one of two values: for the video's first chunk, or for a later one."""
        return later if self._is_first is None else jnp.where(self._is_first, first, later)


class TimeConv(nnx.Module):
    """Convolution over frames, rows and columns; rows and columns are padded to keep their number.

    Frames are not padded: the caller prepends earlier ones.
    """

    def __init__(
        self,
        in_width: int,
        width: int,
        window: tuple[int, int, int],
        *,
        stride: int = 1,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        made = conv(in_width, width, window, rngs=rngs, param_dtype=param_dtype)
        assert made.bias is not None
        self.kernel, self.bias = made.kernel, made.bias
        self.stride = stride

    def __call__(self, x: Frames) -> Frames:
        """Convolve over frames, rows and columns."""
        kernel, bias = self.kernel[...].astype(x.dtype), self.bias[...].astype(x.dtype)
        frames = max(0, (x.shape[1] - kernel.shape[0]) // self.stride + 1)
        if not frames:
            return jnp.zeros_like(x, shape=(x.shape[0], 0, *x.shape[2:4], kernel.shape[-1]))
        return over_time(x, kernel, self.stride) + bias


def over_time(x: Frames, kernel: Kernel, stride: int) -> Frames:
    """Convolve frames, rows and columns, in the form that is fast on the platform.

    XLA's three-dimensional convolution takes five times as long on a CPU as one over images,
    forwards and backwards. Accelerators support it in hardware, and copying frames would only cost
    memory.
    """
    convolved: Frames = jax.lax.platform_dependent(
        x,
        kernel,
        cpu=partial(convolve_frames, stride=stride),
        default=partial(by_volumes, stride=stride),
    )
    return convolved


def by_volumes(x: Frames, kernel: Kernel, stride: int) -> Frames:
    """Convolve over frames, rows and columns at once."""
    padding = [(0, 0), *_sides(kernel)]
    dimensions = ("NDHWC", "DHWIO", "NDHWC")
    strides = (stride, 1, 1)
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=dimensions)


def convolve_frames(x: Frames, kernel: Kernel, stride: int) -> Frames:
    """Convolve over rows and columns, with the kernel's frames as channels of one image."""
    batch, count, height, width, _ = x.shape
    time, rows, columns, in_width, out_width = kernel.shape
    frames = (count - time) // stride + 1
    spans = [x[:, at : at + stride * (frames - 1) + 1 : stride] for at in range(time)]
    images = jnp.concatenate(spans, axis=-1).reshape(-1, height, width, time * in_width)
    flat = kernel.transpose(1, 2, 0, 3, 4).reshape(rows, columns, time * in_width, out_width)
    out = jax.lax.conv_general_dilated(
        images, flat, (1, 1), _sides(kernel), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out.reshape(batch, frames, height, width, out_width)


def _sides(kernel: Kernel) -> list[tuple[int, int]]:
    """Return the padding of a convolution's rows and columns that keeps their number."""
    return [(size // 2, size // 2) for size in kernel.shape[1:3]]


def causal_conv(in_width: int, width: int, **make: Any) -> TimeConv:
    """Build a causal 3 x 3 x 3 convolution; its input includes the two frames before."""
    return TimeConv(in_width, width, (3, 3, 3), **make)


class RmsNorm(nnx.Module):
    """RMS norm over channels, x / |x| · sqrt(width) · gamma, with the quotient in float32.

    Args:
        window: number of axes of size one after the channels of the checkpoint's gamma.
    """

    EPSILON = 1e-12

    def __init__(
        self, width: int, window: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        shape = (width, *(1,) * window)
        ones = nnx.initializers.ones_init()(rngs.params(), shape, param_dtype)
        self.gamma = nnx.Param(ones, axes=("conv_out", *(None,) * window))

    def __call__(self, x: Frames) -> Frames:
        """Normalize each pixel's channels by their root mean square."""
        wide = x.astype(jnp.float32)
        # The root of zero has no gradient, so the lower bound applies to the square.
        square = jnp.square(wide).sum(axis=-1, keepdims=True)
        normed = wide * jax.lax.rsqrt(jnp.maximum(square, self.EPSILON**2))
        gamma = self.gamma[...].reshape(-1).astype(x.dtype)
        scaled: Frames = normed.astype(x.dtype) * x.shape[-1] ** 0.5 * gamma
        return scaled


class ResidualBlock(nnx.Module):
    """Residual block x + conv(silu(norm(conv(silu(norm(x)))))).

    A 1x1x1 convolution projects x if the width changes.
    """

    def __init__(self, in_width: int, width: int, **make: Any) -> None:
        self.norm1 = RmsNorm(in_width, 3, **make)
        self.conv1 = causal_conv(in_width, width, **make)
        self.norm2 = RmsNorm(width, 3, **make)
        self.conv2 = causal_conv(width, width, **make)
        self.conv_shortcut = (
            linear(in_width, width, ("conv_in", "conv_out"), **make) if in_width != width else None
        )

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Apply both convolutions to a video, and add the input."""
        hidden = self.conv1(cache.prepend(nnx.silu(self.norm1(x)), 2))
        hidden = self.conv2(cache.prepend(nnx.silu(self.norm2(hidden)), 2))
        return split_image(hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x)))


class FrameAttention(nnx.Module):
    """Residual attention with one head over all positions of each frame separately."""

    def __init__(self, width: int, *, attention: CrossAttention, **make: Any) -> None:
        axes = ("conv_in", "conv_out")
        self.norm = RmsNorm(width, 2, **make)
        self.to_qkv = linear(width, 3 * width, axes, **make)
        self.proj = linear(width, width, axes, **make)
        self.attend = attention

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Attend over the pixels of each frame."""
        batch, frames, height, width, channels = x.shape
        tokens = replicated(self.norm(x)).reshape(batch * frames, height * width, 1, channels)
        q, k, v = jnp.split(self.to_qkv(split_positions(tokens)), 3, axis=-1)
        out = split_positions(self.attend(q, replicated(k), replicated(v)))
        return split_image(x + replicated(self.proj(out)).reshape(x.shape))


class VideoMidBlock(nnx.Module):
    """Middle block of an autoencoder: two residual blocks with attention between them."""

    def __init__(self, width: int, *, attention: CrossAttention, **make: Any) -> None:
        self.resnets = nnx.List(ResidualBlock(width, width, **make) for _ in range(2))
        self.attention = FrameAttention(width, attention=attention, **make)

    def __call__(self, x: Frames, cache: FeatureCache) -> Frames:
        """Apply the blocks of the lowest resolution."""
        x = self.attention(self.resnets[0](x, cache), cache)
        return self.resnets[1](x, cache)


def run(layers: Sequence[nnx.Module], x: Frames, cache: FeatureCache) -> Frames:
    """Run the layers of a VAE in order with one feature cache."""
    for layer in layers:
        x = layer(x, cache)
    return x
