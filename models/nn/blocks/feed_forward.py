"""Feed-forwards of transformer blocks."""

from __future__ import annotations

from functools import partial

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import activated, linear


class GeluFeedForward(nnx.Module):
    """Four times as wide in the middle, tanh GELU."""

    def __init__(
        self, width: int, *, use_bias: bool = True, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        dense = partial(linear, use_bias=use_bias, rngs=rngs, param_dtype=param_dtype)
        self.up = dense(width, 4 * width, ("embed", "mlp"))
        self.down = dense(4 * width, width, ("mlp", "embed"))

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Apply the layers to each token."""
        return self.down(activated(self.up, x, tanh_gelu))
