"""Feed-forwards of transformer blocks."""

from __future__ import annotations

from typing import Unpack

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import Kinds, activated, linear


class GeluMiddle(nnx.Module):
    """Middle of a feed-forward: tanh GELU."""

    def __init__(
        self, width: int, inner: int, *, use_bias: bool = True, **kinds: Unpack[Kinds]
    ) -> None:
        self.up = linear(width, inner, ("embed", "mlp"), use_bias=use_bias, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens inner"]:
        """Apply the layers to each token."""
        return activated(self.up, x, tanh_gelu)


class GatedMiddle(nnx.Module):
    """Middle of a gated feed-forward. Source: Shazeer 2020, eq. 6."""

    def __init__(
        self, width: int, inner: int, *, use_bias: bool = True, **kinds: Unpack[Kinds]
    ) -> None:
        axes = ("embed", "mlp")
        self.gate, self.up = (
            linear(width, inner, axes, use_bias=use_bias, **kinds) for _ in range(2)
        )

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens inner"]:
        """Apply the layers to each token."""
        return activated(self.gate, x, jax.nn.silu) * self.up(x)


class GeluFeedForward(GeluMiddle):
    """Four times as wide in the middle, tanh GELU."""

    def __init__(
        self, width: int, *, use_bias: bool = True, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(width, 4 * width, use_bias=use_bias, **kinds)
        self.down = linear(4 * width, width, ("mlp", "embed"), use_bias=use_bias, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Apply the layers to each token."""
        return self.down(super().__call__(x))


class SwiGlu(GatedMiddle):
    """Gated feed-forward without biases."""

    def __init__(self, width: int, inner: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(width, inner, use_bias=False, **kinds)
        self.down = linear(inner, width, ("mlp", "embed"), use_bias=False, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Apply the layers to each token."""
        return self.down(super().__call__(x))
