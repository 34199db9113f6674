"""Embeddings of scalars (timestep, guidance) and vectors (pooled text) as conditioning vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32

from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import OffsetRMSNorm
from models.nn.layers.parameterised import Kinds, activated, linear


def sinusoid(
    values: Float[Array, " batch"], features: int, max_period: float = 10_000.0
) -> Float[Array, "batch features"]:
    """Compute [cos, sin] of the values at geometrically spaced frequencies, in float32.

    If the number of features is odd, the last is 0.
    Source: Ho et al. 2020 (DDPM), after Vaswani et al. 2017, section 3.5; cosine first, as in
    diffusers with flip_sin_to_cos and no frequency shift.
    """
    frequencies = _frequencies(features // 2, max_period)
    angles = values.astype(jnp.float32)[:, None] * frequencies[None, :]
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    return jnp.pad(waves, ((0, 0), (0, features % 2)))


def sinusoid_table(values: Float32[np.ndarray, " rows"], features: int) -> np.ndarray:
    """Compute `sinusoid` of constants on the host: float32 angles, with exact waves."""
    angles = np.outer(values, _frequencies(features // 2, 10_000.0)).astype(np.float64)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return np.pad(waves.astype(np.float32), ((0, 0), (0, features % 2)))


def _frequencies(count: int, max_period: float) -> np.ndarray:
    """Return frequencies from 1 down to 1 / max_period, float32.

    Exponents are rounded as in the reference, and powers correctly. A guidance scale of 30 has an
    angle of 30,000, which the last bit of its frequency changes by a thousandth.
    """
    exponents = np.float32(-math.log(max_period)) * np.arange(count, dtype=np.float32)
    return np.exp((exponents / np.float32(count)).astype(np.float64)).astype(np.float32)


class ConditionMLP(nnx.Module):
    """MLP (linear, activation, linear) from any vector to the width of the network."""

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        inner: int | None = None,
        use_bias: bool = True,
        activation: Callable[[Array], Array] = jax.nn.silu,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        """Create the layers of the MLP.

        Args:
            inner: hidden features; None: `features`.
        """
        inner = inner or features
        dense = partial(linear, use_bias=use_bias, rngs=rngs, param_dtype=param_dtype)
        self.first = dense(in_features, inner, (None, "mlp"))
        self.second = dense(inner, features, ("mlp", "embed"))
        self.activation = activation

    def __call__(self, x: Float[Array, "batch in"]) -> Float[Array, "batch features"]:
        """Embed each conditioning vector."""
        return self.second(self.activation(self.first(x.astype(self.first.kernel.dtype))))


class TextInput(nnx.Module):
    """Norm and MLP (linear, tanh GELU, linear) from a text encoder's features to a width."""

    def __init__(
        self,
        features: int,
        width: int,
        epsilon: float,
        *,
        use_bias: bool = True,
        **kinds: Unpack[Kinds],
    ) -> None:
        self.norm = OffsetRMSNorm(features, epsilon, axis=None, rngs=kinds["rngs"])
        self.first = linear(features, width, (None, "mlp"), use_bias=use_bias, **kinds)
        self.second = linear(width, width, ("mlp", "embed"), use_bias=use_bias, **kinds)

    def __call__(
        self, captions: Float[Array, "batch tokens features"]
    ) -> Float[Array, "batch tokens width"]:
        """Embed each token of the text encoder's features."""
        return self.second(activated(self.first, self.norm(captions), tanh_gelu))
