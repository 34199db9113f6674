"""Embeddings of scalars: time, guidance scale and image sizes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.parameterised import linear
from models.sdxl.config import ACTIVATIONS

MAX_PERIOD = 10_000


def sinusoid(
    values: Float[Array, " count"], features: int, *, flip_sin_to_cos: bool, freq_shift: int | float
) -> Float[Array, "count features"]:
    """Return sines and cosines of the values at geometrically spaced frequencies, in float32.

    Frequencies are rounded as in the reference. At timestep 999, one bit of a frequency changes the
    angle a thousand times as much.

    Source: Ho et al. 2020 (DDPM), after Vaswani et al. 2017, section 3.5; the options are those of
    diffusers' get_timestep_embedding.
    """
    half = features // 2
    exponent = np.float32(-math.log(MAX_PERIOD)) * np.arange(half, dtype=np.float32)
    exponent = exponent / np.float32(half - freq_shift)
    frequencies = np.exp(exponent.astype(np.float64)).astype(np.float32)
    angles = values.astype(jnp.float32)[:, None] * frequencies[None, :]
    waves = [jnp.sin(angles), jnp.cos(angles)]
    table = jnp.concatenate(waves[::-1] if flip_sin_to_cos else waves, axis=-1)
    return jnp.pad(table, ((0, 0), (0, features % 2)))


class Embedding(nnx.Module):
    """Two-layer MLP: diffusers' TimestepEmbedding.

    With `extra_features`, a projected second vector (the embedded guidance scale) is added to the
    input.
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        activation: str = "silu",
        extra_features: int | None = None,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        kinds: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        self.linear_1 = linear(in_features, features, (None, "mlp"), **kinds)
        self.linear_2 = linear(features, features, ("mlp", "embed"), **kinds)
        self.cond_proj = (
            None
            if extra_features is None
            else linear(extra_features, in_features, (None, None), use_bias=False, **kinds)
        )
        self.activation = ACTIVATIONS[activation]

    def __call__(
        self, x: Float[Array, "batch in"], extra: Float[Array, "batch extra"] | None = None
    ) -> Float[Array, "batch features"]:
        """Embed sinusoids of a scalar, in the weights' dtype.

        Raises:
            ValueError: `extra` is given, but the network has no projection for it.
        """
        dtype = self.linear_1.kernel.dtype
        x = x.astype(dtype)
        if extra is not None:
            if self.cond_proj is None:
                raise ValueError("this UNet has no time_cond_proj_dim: it takes no timestep_cond")
            x = x + self.cond_proj(extra.astype(dtype))
        return self.linear_2(self.activation(self.linear_1(x)))
