"""Feed-forward layers of transformer blocks."""

from __future__ import annotations

from typing import Unpack

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import Kinds, activated, linear


class GeluMiddle(nnx.Module):
    """First half of a feed-forward: linear, tanh GELU."""

    def __init__(
        self, width: int, inner: int, *, use_bias: bool = True, **kinds: Unpack[Kinds]
    ) -> None:
        self.up = linear(width, inner, ("embed", "mlp"), use_bias=use_bias, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens inner"]:
        """Project each token to `inner` features and activate them."""
        return activated(self.up, x, tanh_gelu)


class GatedMiddle(nnx.Module):
    """First half of a gated feed-forward, silu(gate) · up. Source: Shazeer 2020, eq. 6."""

    def __init__(
        self, width: int, inner: int, *, use_bias: bool = True, **kinds: Unpack[Kinds]
    ) -> None:
        axes = ("embed", "mlp")
        self.gate, self.up = (
            linear(width, inner, axes, use_bias=use_bias, **kinds) for _ in range(2)
        )

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens inner"]:
        """Project each token to `inner` gated features."""
        return activated(self.gate, x, jax.nn.silu) * self.up(x)


class GeluFeedForward(GeluMiddle):
    """Feed-forward with tanh GELU, four times as wide in the middle."""

    def __init__(
        self, width: int, *, use_bias: bool = True, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(width, 4 * width, use_bias=use_bias, **kinds)
        self.down = linear(4 * width, width, ("mlp", "embed"), use_bias=use_bias, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Project each token up, activate, and project down."""
        return self.down(super().__call__(x))


class SwiGlu(GatedMiddle):
    """Gated SiLU feed-forward without biases."""

    def __init__(self, width: int, inner: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        super().__init__(width, inner, use_bias=False, **kinds)
        self.down = linear(inner, width, ("mlp", "embed"), use_bias=False, **kinds)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Project each token to gated features, and down."""
        return self.down(super().__call__(x))
