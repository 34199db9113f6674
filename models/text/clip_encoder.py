"""Transformer layers that CLIP's text and vision towers and SigLIP's share.

Source: Radford et al. 2021, section 2.4; transformers' CLIPEncoderLayer for the conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.nn.attention.attention import Attention
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.parameterised import linear

Activation = Callable[[Array], Array]


def quick_gelu(x: Array) -> Array:
    """Compute x σ(1.702 x). Source: Hendrycks & Gimpel 2016, section 2."""
    return x * jax.nn.sigmoid(jnp.asarray(1.702, x.dtype) * x)


ACTIVATIONS: Mapping[str, Activation] = {
    "quick_gelu": quick_gelu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": tanh_gelu,
}


@runtime_checkable
class Tower(Protocol):
    """Part of a CLIP config that shapes the encoder's layers."""

    @property
    def hidden_size(self) -> int:
        """Features of a token in the encoder."""

    @property
    def intermediate_size(self) -> int:
        """Hidden features of the encoder's feed-forward."""

    @property
    def num_attention_heads(self) -> int:
        """Number of attention heads."""

    @property
    def hidden_act(self) -> str:
        """Name of the activation function."""

    @property
    def layer_norm_eps(self) -> float:
        """Epsilon of the layer norms."""


def check_tower(config: Tower, network: str = "CLIP") -> None:
    """Check the sizes of a CLIP encoder's config.

    Args:
        network: its name, for messages.

    Raises: ValueError: sizes that contradict each other, or an unknown activation; names it.
    """
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(
            f"{network} hidden_size {config.hidden_size} must be a multiple of "
            f"num_attention_heads {config.num_attention_heads}"
        )
    if config.hidden_act not in ACTIVATIONS:
        raise ValueError(
            f"{network} hidden_act must be one of {', '.join(ACTIVATIONS)}, "
            f"not {config.hidden_act!r}"
        )


class ClipBlock(nnx.Module):
    """Pre-norm transformer layer: self-attention, then feed-forward."""

    def __init__(
        self, config: Tower, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        dense = partial(linear, rngs=rngs, param_dtype=param_dtype)
        norm = partial(tower_norm, config, rngs=rngs, param_dtype=param_dtype)
        self.heads = config.num_attention_heads
        self.attention = attention
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm1, self.norm2 = norm(), norm()
        self.q = dense(width, width, ("embed", "heads"))
        self.k = dense(width, width, ("embed", "heads"))
        self.v = dense(width, width, ("embed", "heads"))
        self.out = dense(width, width, ("heads", "embed"))
        self.up = dense(width, inner, ("embed", "mlp"))
        self.down = dense(inner, width, ("mlp", "embed"))

    def __call__(
        self, x: Float[Array, "batch tokens hidden"], bias: Float[Array, ...] | None = None
    ) -> Float[Array, "batch tokens hidden"]:
        """Apply self-attention, then the feed-forward."""
        x = x + self._attend(self.norm1(x), bias)
        return x + self.down(self.activation(self.up(self.norm2(x))))

    def _attend(self, x: Array, bias: Array | None) -> Array:
        q, k, v = (_split_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        return self.out(self.attention(q, k, v, bias).reshape(x.shape))


def _split_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def tower_norm(config: Tower, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.LayerNorm:
    """Build a layer norm of the tower's width."""
    return nnx.LayerNorm(
        config.hidden_size,
        epsilon=config.layer_norm_eps,
        use_fast_variance=False,
        scale_metadata={"axes": ("embed",)},
        bias_metadata={"axes": ("embed",)},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def layer_renames(prefix: str) -> tuple[tuple[str, str], ...]:
    """Return rename rules from transformers' layers to stacked `blocks`."""
    layer = rf"{prefix}encoder\.layers\.(\d+)\."
    names = (
        ("layer_norm1", "norm1", "scale"),
        ("layer_norm2", "norm2", "scale"),
        (r"self_attn\.q_proj", "q", "kernel"),
        (r"self_attn\.k_proj", "k", "kernel"),
        (r"self_attn\.v_proj", "v", "kernel"),
        (r"self_attn\.out_proj", "out", "kernel"),
        (r"mlp\.fc1", "up", "kernel"),
        (r"mlp\.fc2", "down", "kernel"),
    )
    weights = (
        (rf"{layer}{name}\.weight", rf"blocks.{path}.{leaf}[\1]") for name, path, leaf in names
    )
    biases = ((rf"{layer}{name}\.bias", rf"blocks.{path}.bias[\1]") for name, path, _ in names)
    return (*weights, *biases)
