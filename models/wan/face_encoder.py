"""Face encoder of Animate: frames of a face video to tokens for each latent frame.

Each frame's motion is encoded as a combination of few orthogonal directions. Causal convolutions
over time turn motions into tokens.

Source: Wang et al. 2022, "Latent Image Animator", section 3.2 and eq. 3, for the motion; Cheng et
al. 2025, "Wan-Animate", section 4.2; in the parametrisation of diffusers'
WanAnimateTransformer3DModel. Scaled kernels: Karras et al. 2018, section 4.1.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt8

from models.nn.layers.norms import layer_norm
from models.nn.layers.parameterised import Kinds, conv, linear
from models.wan.animate_config import AnimateConfig

Image = Float[Array, "batch _rows _columns _channels"]
Series = Float[Array, "batch _frames _channels"]

BLUR = (1.0, 3.0, 3.0, 1.0)
"""Weights of the blur filter before downsampling."""
SLOPE, GAIN = 0.2, 2**0.5
EPSILON = 1e-6
"""Epsilon of the norms in the temporal layers; the same in every Animate."""
KERNEL, STRIDES = 3, (1, 2, 2)
"""Kernel size and strides of the temporal convolutions."""


def scaled(kernel: nnx.Param[Any]) -> Array:
    """Return a kernel divided by the square root of its number of inputs, as in training."""
    value = kernel[...]
    scale: Array = value / math.sqrt(math.prod(value.shape[:-1]))
    return scale


def convolved(x: Image, kernel: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Image:
    """Convolve face images, which are replicated on every device."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def blurred(x: Image, padding: int) -> Image:
    """Blur each channel of an image with the filter `BLUR`."""
    weights = jnp.outer(jnp.asarray(BLUR), jnp.asarray(BLUR)).astype(x.dtype)
    kernel = jnp.broadcast_to(
        (weights / weights.sum())[..., None, None], (*weights.shape, 1, x.shape[-1])
    )
    return convolved(x, kernel, padding=padding, groups=x.shape[-1])


class MotionConv(nnx.Module):
    """Convolution with a scaled kernel; downsampling ones blur first."""

    def __init__(
        self,
        sizes: tuple[int, int],
        window: int,
        *,
        halves: bool = False,
        activated: bool = True,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        self.layer = conv(
            *sizes, (window, window), use_bias=activated, rngs=rngs, param_dtype=param_dtype
        )
        self.halves = halves

    def __call__(self, x: Image, padding: int = 0) -> Image:
        """Convolve an image; with a bias, add it and apply leaky ReLU."""
        kernel = scaled(self.layer.kernel)
        if self.halves:
            border = (len(BLUR) - 2 + len(kernel) - 1) // 2
            x = blurred(x, border)
        x = convolved(x, kernel, 2 if self.halves else 1, padding)
        if self.layer.bias is None:
            return x
        return jax.nn.leaky_relu(x + self.layer.bias[...], SLOPE) * GAIN


class HalvingBlock(nnx.Module):
    """Residual block of the motion encoder, which halves an image's sides."""

    def __init__(self, sizes: tuple[int, int], *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        make = partial(MotionConv, rngs=rngs, param_dtype=param_dtype)
        self.first = make((sizes[0], sizes[0]), 3)
        self.second = make(sizes, 3, halves=True)
        self.skip = make(sizes, 1, halves=True, activated=False)

    def __call__(self, x: Image) -> Image:
        """Downsample an image by two along both sides."""
        halved = self.second(self.first(x, padding=1))
        return (halved + self.skip(x)) / math.sqrt(2)


class MotionEncoder(nnx.Module):
    """Encoder of a face image to a motion vector."""

    def __init__(
        self, config: AnimateConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        make, style = partial(MotionConv, **kinds), config.motion_style_dim
        channels = [dict(config.channels)[side] for side in config.sides]
        self.image_in = make((3, channels[0]), 1)
        self.halving = nnx.List(
            [HalvingBlock(sizes, **kinds) for sizes in itertools.pairwise(channels)]
        )
        self.style_out = make((channels[-1], style), 4, activated=False)
        features = [style] * 5 + [config.motion_dim]
        self.linears = nnx.List(
            [linear(*sizes, ("embed", None), **kinds) for sizes in itertools.pairwise(features)]
        )
        directions = jax.random.normal(
            rngs.params(), (config.motion_encoder_dim, config.motion_dim), jnp.float32
        )
        self.directions = nnx.Param(directions, axes=("embed", None))

    def __call__(self, faces: Image) -> Float[Array, "batch motion"]:
        """Return the motion of each image; pixels in [-1, 1]."""
        x = self.image_in(faces)
        for block in self.halving:
            x = block(x)
        x = self.style_out(x).reshape(len(x), -1)
        for layer in self.linears:
            assert layer.bias is not None
            x = x @ scaled(layer.kernel) + layer.bias[...]
        orthogonal, _ = jnp.linalg.qr(self.directions[...] + 1e-8)
        return jnp.matmul(
            x.astype(jnp.float32), orthogonal.T, precision=jax.lax.Precision.HIGHEST
        ).astype(x.dtype)


class FaceEncoder(nnx.Module):
    """Encoder of face frames to tokens for Wan Animate.

    Each latent frame has one token per head, followed by a learned token.
    """

    def __init__(
        self, config: AnimateConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        hidden, heads = config.face_encoder_hidden_dim, config.face_encoder_num_heads
        self.motion = MotionEncoder(config, **kinds)
        features = (config.motion_encoder_dim, hidden, hidden)
        self.convs = nnx.List(
            [
                conv(size, hidden * count, (KERNEL,), strides=stride, **kinds)
                for size, count, stride in zip(features, (heads, 1, 1), STRIDES, strict=True)
            ]
        )
        self.out = linear(hidden, config.width, ("embed", None), **kinds)
        learned = jnp.zeros((1, 1, 1, config.width), param_dtype)
        self.learned = nnx.Param(learned, axes=(None, None, None, "embed"))
        self.heads, self.at_once = heads, config.motion_encoder_batch_size

    def __call__(
        self, frames: UInt8[Array, "frames side side 3"], prompts: int
    ) -> Float[Array, "prompts latent_frames face_tokens width"]:
        """Return the face tokens per latent frame; those of the character's image are zero.

        Args:
            prompts: 2 with guidance; the negative prompt uses a black face.
        """
        dtype = self.out.kernel.dtype
        pixels = frames.astype(jnp.float32) / 255 * 2 - 1
        black = -jnp.ones((1, *frames.shape[1:]), jnp.float32)
        motions = [self.motions(pixels.astype(dtype))]
        if prompts > 1:
            motions.append(jnp.broadcast_to(self.motion(black.astype(dtype)), motions[0].shape))
        return self.tokens(jnp.stack(motions))

    def motions(self, pixels: Image) -> Float[Array, "batch motion"]:
        """Return the motion vectors of many face images, processed in batches."""
        motions: Array = jax.lax.map(
            lambda face: self.motion(face[None])[0], pixels, batch_size=self.at_once
        )
        return motions

    def tokens(self, motion: Series) -> Float[Array, "batch latent_frames face_tokens width"]:
        """Return the tokens of motion vectors, preceded by zeros for the character's image."""
        x = _in_time(self.convs[0], motion)
        batch, frames, _ = x.shape
        x = x.reshape(batch, frames, self.heads, -1).transpose(0, 2, 1, 3)
        x = _normed(x.reshape(batch * self.heads, frames, -1))
        for layer in self.convs[1:]:
            x = _normed(_in_time(layer, x))
        x = self.out(x)
        x = x.reshape(batch, self.heads, *x.shape[1:]).transpose(0, 2, 1, 3)
        learned = jnp.broadcast_to(self.learned[...], (batch, x.shape[1], 1, x.shape[-1]))
        x = jnp.concatenate([x, learned.astype(x.dtype)], axis=2)
        return jnp.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0)))


def _in_time(layer: nnx.Conv, x: Series) -> Series:
    """Convolve causally over frames, padded at the start with copies of the first frame."""
    out: Array = layer(jnp.pad(x, ((0, 0), (KERNEL - 1, 0), (0, 0)), mode="edge"))
    return out


def _normed(x: Series) -> Series:
    return jax.nn.silu(layer_norm(x, EPSILON))
