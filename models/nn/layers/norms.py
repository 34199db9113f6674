"""Norms with statistics in float32, and adaptive norms."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.conv_strips import by_image, repeat_by_strip
from models.nn.layers.parameterised import Linear, linear
from models.parallel.trace_options import trace_options


def layer_norm(x: Float[Array, "*batch width"], epsilon: float) -> Float[Array, "*batch width"]:
    """Normalize to zero mean and unit variance over the last axis, without scale or bias."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


def rms(x: Float[Array, "*batch width"], epsilon: float) -> Float[Array, "*batch width"]:
    """Normalize to a root mean square of one over the last axis, without a scale."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + epsilon)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """`layer_norm` with a learned scale and bias, stored and applied in float32.

    Source: Ba et al. 2016, eq. 4.
    """

    def __init__(self, features: int, epsilon: float, *, rngs: nnx.Rngs) -> None:
        ones = nnx.initializers.ones_init()(rngs.params(), (features,), jnp.float32)
        self.scale = nnx.Param(ones, axes=(None,))
        self.bias = nnx.Param(jnp.zeros_like(ones), axes=(None,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Normalize each vector, in float32."""
        normed = layer_norm(x.astype(jnp.float32), self.epsilon)
        return (normed * self.scale[...] + self.bias[...]).astype(x.dtype)


class RMSNorm(nnx.Module):
    """RMS norm over the last axis: x / rms(x) · scale. Source: Zhang and Sennrich 2019, eq. 4."""

    def __init__(
        self,
        features: int,
        epsilon: float,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        ones = nnx.initializers.ones_init()(rngs.params(), (features,), param_dtype)
        self.scale = nnx.Param(ones, axes=(None,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Normalize each vector by its root mean square."""
        return self._normed(x, -1, self.scale[...])

    def over_heads(
        self, x: Float[Array, "batch tokens heads dim"]
    ) -> Float[Array, "batch tokens heads dim"]:
        """Normalize over the features of all heads of a token together."""
        return self._normed(x, (-2, -1), self.scale[...].reshape(x.shape[-2:]))

    def _normed(self, x: Array, axes: int | tuple[int, ...], scale: Array) -> Array:
        wide = x.astype(jnp.float32)
        mean_square = jnp.square(wide).mean(axis=axes, keepdims=True)
        normed = wide * jax.lax.rsqrt(mean_square + self.epsilon)
        return normed.astype(x.dtype) * scale.astype(x.dtype)


class OffsetRMSNorm(nnx.Module):
    """RMS norm as x / rms(x) · (1 + scale), in float32. Source: transformers' Gemma3RMSNorm."""

    def __init__(
        self,
        features: int,
        epsilon: float,
        *,
        axis: str | None = "embed",
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        zeros = nnx.initializers.zeros_init()(rngs.params(), (features,), param_dtype)
        self.scale = nnx.Param(zeros, axes=(axis,))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """Normalize each vector by its root mean square."""
        normed = rms(x.astype(jnp.float32), self.epsilon)
        return (normed * (1 + self.scale[...].astype(jnp.float32))).astype(x.dtype)


class GroupNorm(nnx.Module):
    """Group norm of an image's channels: zero mean and unit variance, then scale and bias.

    Sums are over channels, then groups: a TPU would copy an image to separate its channels. In half
    precision, mean and variance come from the sums of numbers and squares, in one pass. The float32
    error is far below the rounding of half-precision inputs.

    Source: Wu and He 2018, eq. 1 and 7.
    """

    def __init__(
        self,
        width: int,
        groups: int,
        epsilon: float,
        *,
        axis: str = "conv_out",
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        ones = nnx.initializers.ones_init()(rngs.params(), (width,), param_dtype)
        self.scale = nnx.Param(ones, axes=(axis,))
        self.bias = nnx.Param(jnp.zeros_like(ones), axes=(axis,))
        self.groups = groups
        self.epsilon = epsilon

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch height width channels"]:
        """Normalize each group of channels, in float32."""
        wide = x.astype(jnp.float32)
        mean = self._mean(wide)
        if x.dtype == jnp.float32:
            variance = self._mean(jnp.square(wide - mean))
        else:
            variance = jnp.maximum(0, self._mean(jnp.square(wide)) - jnp.square(mean))
        scale, bias = (leaf[...].astype(jnp.float32) for leaf in (self.scale, self.bias))
        normed = (wide - mean) * (jax.lax.rsqrt(variance + self.epsilon) * scale) + bias
        return normed.astype(x.dtype)

    def _mean(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch 1 1 channels"]:
        """Compute the mean of each image's groups, repeated for all its channels and strips."""
        channels = by_image(x.mean(axis=(1, 2)))
        strips = trace_options().strips
        groups = channels.reshape(len(channels), strips, self.groups, -1).mean(axis=(1, 3))
        return repeat_by_strip(jnp.repeat(groups, x.shape[-1] // self.groups, axis=-1))[
            :, None, None
        ]


class Modulation(nnx.Module):
    """Layer from the conditioning vector to `count` modulation vectors, for adaptive norms.

    Source: Peebles and Xie 2022 (DiT), section 3.2, adaLN-Zero.
    """

    def __init__(
        self,
        width: int,
        count: int,
        *,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        axes = ("embed", "modulation")
        self.linear = linear(
            width, count * width, axes, use_bias=use_bias, rngs=rngs, param_dtype=param_dtype
        )
        self.count = count

    def __call__(self, condition: Float[Array, "batch width"]) -> Float[Array, "batch count width"]:
        """Return the shift, scale and gate vectors, computed from exact activations."""
        vectors = linear_with_exact_activations(self.linear, jax.nn.silu(condition))
        return vectors.reshape(len(vectors), self.count, -1)


def linear_with_exact_activations(
    layer: Linear, condition: Float[Array, "batch _in"]
) -> Float[Array, "batch _features"]:
    """Apply a layer to few vectors with unquantized activations: reading its weights dominates."""
    options = trace_options()
    with replace(options, quant=options.quant and "w8a16").active():
        return layer(condition)


def modulate(
    x: Float[Array, "batch tokens width"],
    shift: Float[Array, "batch _one_or_tokens width"],
    scale: Float[Array, "batch _one_or_tokens width"],
    epsilon: float = 1e-6,
) -> Float[Array, "batch tokens width"]:
    """Apply adaptive layer norm: norm(x) · (1 + scale) + shift."""
    return layer_norm(x, epsilon) * (1 + scale) + shift
