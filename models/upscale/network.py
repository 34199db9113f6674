"""RRDBNet, the super-resolution network of ESRGAN and Real-ESRGAN.

Source: Wang et al. 2018 (ESRGAN), section 3.1; Wang et al. 2021 (Real-ESRGAN), section 4.1, for the
pixel squares that become channels. Names and order as in BasicSR's archs/rrdbnet_arch.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.parameterised import Conv, conv
from models.nn.layers.scanned import scan, stack
from models.upscale.config import COLOURS, RrdbConfig

SLOPE = 0.2
"""Slope of the leaky ReLUs below 0."""
RESIDUAL = 0.2
"""Scale of a block's residual."""
WINDOW = (3, 3)


def _conv(features: int, out: int, **kinds: Any) -> Conv:
    return conv(features, out, WINDOW, padding=1, **kinds)


def _leaky(x: Array) -> Array:
    return jax.nn.leaky_relu(x, SLOPE)


class DenseConvolutions(nnx.Module):
    """Dense block of an RRDBNet: five convolutions that each read all previous outputs."""

    def __init__(self, config: RrdbConfig, **kinds: Any) -> None:
        features, growth = config.features, config.growth
        self.conv1 = _conv(features, growth, **kinds)
        self.conv2 = _conv(features + growth, growth, **kinds)
        self.conv3 = _conv(features + 2 * growth, growth, **kinds)
        self.conv4 = _conv(features + 3 * growth, growth, **kinds)
        self.conv5 = _conv(features + 4 * growth, features, **kinds)

    def __call__(self, x: Float[Array, "n h w features"]) -> Float[Array, "n h w features"]:
        """Apply the block's convolutions, and add the scaled result to the input."""
        features = x
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = jnp.concatenate([features, _leaky(layer(features))], axis=-1)
        return x + RESIDUAL * self.conv5(features)


class ResidualInResidual(nnx.Module):
    """Residual-in-residual block: three dense blocks with an outer residual connection."""

    def __init__(self, config: RrdbConfig, **kinds: Any) -> None:
        self.rdb1 = DenseConvolutions(config, **kinds)
        self.rdb2 = DenseConvolutions(config, **kinds)
        self.rdb3 = DenseConvolutions(config, **kinds)

    def __call__(self, x: Float[Array, "n h w features"]) -> Float[Array, "n h w features"]:
        """Apply the dense blocks, and add the scaled result to the input."""
        return x + RESIDUAL * self.rdb3(self.rdb2(self.rdb1(x)))


class RrdbNet(nnx.Module):
    """Network that enlarges images by `config.scale`: pixels in [0, 1] → unclipped pixels."""

    def __init__(
        self, config: RrdbConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike = jnp.float32
    ) -> None:
        self.config = config
        kinds: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        features = config.features
        self.conv_first = _conv(COLOURS * config.unshuffle**2, features, **kinds)
        self.body = stack(partial(ResidualInResidual, config), config.blocks, **kinds)
        self.conv_body = _conv(features, features, **kinds)
        self.conv_up = nnx.List(
            [_conv(features, features, **kinds) for _ in range(config.doublings)]
        )
        self.conv_hr = _conv(features, features, **kinds)
        self.conv_last = _conv(features, COLOURS, **kinds)

    def __call__(self, image: Float[Array, "n h w 3"]) -> Float[Array, "n up_h up_w 3"]:
        """Enlarge images by the network.

        Args:
            image: sides are whole multiples of `config.unshuffle`.
        """
        first = self.conv_first(unshuffled(image, self.config.unshuffle))
        x, _ = scan(self.body, first, lambda block, x: block(x))
        x = first + self.conv_body(x)
        for layer in self.conv_up:
            x = _leaky(layer(doubled(x)))
        return self.conv_last(_leaky(self.conv_hr(x)))


def unshuffled(x: Float[Array, "n h w c"], side: int) -> Float[Array, "n h_less w_less more"]:
    """Convert squares of pixels to channels, ordered channel, row, column, as in torch."""
    n, h, w, c = x.shape
    squares = x.reshape(n, h // side, side, w // side, side, c)
    return squares.transpose(0, 1, 3, 5, 2, 4).reshape(n, h // side, w // side, c * side**2)


def doubled(x: Float[Array, "n h w c"]) -> Float[Array, "n two_h two_w c"]:
    """Double both sides of an image by nearest-neighbour interpolation."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
