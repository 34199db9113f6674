"""Feed-forwards of transformer blocks."""

from __future__ import annotations

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import activated, linear


class GeluFeedForward(nnx.Module):
    """Four times as wide in the middle, tanh GELU."""

    def __init__(self, width: int, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        self.up = linear(width, 4 * width, ("embed", "mlp"), rngs=rngs, param_dtype=param_dtype)
        self.down = linear(4 * width, width, ("mlp", "embed"), rngs=rngs, param_dtype=param_dtype)

    def __call__(self, x: Float[Array, "batch tokens width"]) -> Float[Array, "batch tokens width"]:
        """Apply the layers to each token."""
        return self.down(activated(self.up, x, tanh_gelu))
