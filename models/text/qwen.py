"""Decoder layers of Qwen's language models, run as an encoder; Gemma uses their attention.

They have grouped queries, rotary positions in half-split pairs, a gated feed-forward, and a causal
mask. `Decoder` states whether queries and keys are normed or have biases.

Source: Yang et al. 2025 (Qwen3), section 2; Bai et al. 2025 (Qwen2.5-VL), section 2; transformers'
Qwen3DecoderLayer for the conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from models.nn.attention.attention import Attention
from models.nn.layers.parameterised import Kinds, linear

Tokens = Float[Array, "batch tokens width"]
Norm = Callable[[Array], Array]
Names = tuple[tuple[str, str, Mapping[str, str]], ...]
"""Arrays of a layer: the checkpoint's name, the path here, and the leaves."""


@dataclass(frozen=True)
class Decoder:
    """Dimensions and options of one transformer layer of a text encoder.

    Raises:
        ValueError: heads that the groups do not divide, or heads of odd size.
    """

    width: int
    inner: int
    """Hidden features of the feed-forward."""
    heads: int
    key_heads: int
    """Heads of keys and values; each serves `heads / key_heads` query heads."""
    head_dim: int
    epsilon: float
    """Epsilon of the norms."""
    normed_heads: bool = True
    """Whether queries and keys are normed by head (Qwen3)."""
    biased_inputs: bool = False
    """Whether queries, keys and values have biases (Qwen2.5)."""
    biased_output: bool = False
    """Whether the attention's output has a bias."""
    logit_scale: float | None = None
    """Factor of the attention's logits; None: head_dim ** -0.5."""

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            raise ValueError(
                f"{self.heads} heads of queries must be a multiple of {self.key_heads} heads of "
                "keys and values"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even: RoPE rotates pairs")


class RotaryTable(NamedTuple):
    """Rotations of every position: cosines and sines, [*batch, tokens, head_dim / 2], float32.

    There is no batch axis if all texts have the same positions.
    """

    cos: Array
    sin: Array


def rotary_table(positions: np.ndarray | Array, head_dim: int, theta: float) -> RotaryTable:
    """Compute the RoPE table of integer positions, [*batch, tokens].

    Frequencies are rounded to float32 as in the reference. Source: Su et al. 2021, eq. 15.
    """
    exponents = np.arange(0, head_dim, 2) / head_dim
    angles = jnp.asarray(positions, jnp.float32)[..., None] * jnp.asarray(
        theta**-exponents, jnp.float32
    )
    return RotaryTable(jnp.cos(angles), jnp.sin(angles))


def rotate_half(x: Float[Array, "batch tokens heads dim"], rope: RotaryTable) -> Array:
    """Rotate each pair (i, i + dim / 2) by its token's angle, in float32."""
    cos, sin = (jnp.expand_dims(part, -2) for part in rope)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    both = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(both, axis=-1).astype(x.dtype)


def causal_bias(
    mask: Bool[Array, "batch tokens"], window: int | None = None
) -> Float[Array, "batch 1 tokens tokens"]:
    """Build the causal logit bias: the minimum for keys after their query, and for padding.

    Args:
        window: tokens that a token attends to, including itself; None: all before it.
    """
    tokens = np.arange(mask.shape[1])
    distance = tokens[:, None] - tokens
    near = (distance >= 0) & (distance < (mask.shape[1] if window is None else window))
    is_visible = near & mask[:, None, :]
    return jnp.where(is_visible, 0.0, jnp.finfo(jnp.float32).min)[:, None]


class DecoderBlock(nnx.Module):
    """Pre-norm transformer layer: self-attention, then gated feed-forward."""

    def __init__(
        self, shape: Decoder, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        dense = partial(linear, use_bias=False, **kinds)
        self.attention = GroupedAttention(shape, attention, **kinds)
        self.attention_norm, self.feed_forward_norm = (
            rms_norm(shape.width, shape.epsilon, **kinds) for _ in range(2)
        )
        self.gate = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.up = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.down = dense(shape.inner, shape.width, ("mlp", "embed"))

    def __call__(self, x: Tokens, bias: Array, rope: RotaryTable) -> Tokens:
        """Apply self-attention, then the feed-forward."""
        x = x + self.attention(self.attention_norm(x), bias, rope)
        normed = self.feed_forward_norm(x)
        return x + self.down(jax.nn.silu(self.gate(normed)) * self.up(normed))


class GroupedAttention(nnx.Module):
    """Attention in which each key and value head serves several query heads.

    Source: Ainslie et al. 2023 (GQA), section 2.2.
    """

    def __init__(
        self,
        shape: Decoder,
        attention: Attention,
        norm: Callable[..., Norm] | None = None,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
    ) -> None:
        """Create the layers of the attention.

        Args:
            norm: builds the norms of queries and keys, if they are normed; None: `rms_norm`.
        """
        norm = norm or rms_norm
        dense = partial(linear, rngs=rngs, param_dtype=param_dtype)
        project = partial(dense, use_bias=shape.biased_inputs)
        queries, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
        self.shape, self.kernel = shape, attention
        self.q = project(shape.width, queries, ("embed", "heads"))
        self.k = project(shape.width, keys, ("embed", "heads"))
        self.v = project(shape.width, keys, ("embed", "heads"))
        self.out = dense(queries, shape.width, ("heads", "embed"), use_bias=shape.biased_output)
        self.q_norm, self.k_norm = (
            norm(shape.head_dim, shape.epsilon, axis=None, rngs=rngs, param_dtype=param_dtype)
            if shape.normed_heads
            else None
            for _ in range(2)
        )

    def __call__(self, x: Tokens, bias: Array, rope: RotaryTable) -> Tokens:
        """Attend with a logit bias as mask."""
        q, k, v = (
            layer(x).reshape(*x.shape[:2], -1, self.shape.head_dim)
            for layer in (self.q, self.k, self.v)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        group = self.shape.heads // self.shape.key_heads
        k, v = (jnp.repeat(part, group, axis=2) for part in (rotate_half(k, rope), v))
        attended = self.kernel(rotate_half(q, rope), k, v, bias, self.shape.logit_scale)
        return self.out(attended.reshape(*x.shape[:2], -1))


def rms_norm(
    features: int,
    epsilon: float,
    *,
    axis: str | None = "embed",
    rngs: nnx.Rngs,
    param_dtype: DTypeLike,
) -> nnx.RMSNorm:
    """Build an RMS norm with a scale."""
    return nnx.RMSNorm(
        features,
        epsilon=epsilon,
        scale_metadata={"axes": (axis,)},
        param_dtype=param_dtype,
        rngs=rngs,
    )


def renames(
    read: int,
    layers: int,
    *,
    normed: bool,
    prefix: str = r"(?:model\.)?",
    norms: Mapping[str, str] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Return rename rules for an encoder with `token_embedding`, `blocks` and `final_norm`.

    Args:
        read: number of the encoder's layers.
        layers: number of the checkpoint's layers; those after the encoder's are ignored.
        normed: whether the encoder has the norm after the last layer.
        prefix: regular expression of the keys' prefix.
        norms: names of a layer's norms in the checkpoint → here; None: Qwen's.
    """
    scales = tuple((source, target, _SCALE) for source, target in (norms or _NORMS).items())
    after = "|".join(map(str, range(read, layers)))
    return (
        *(((rf"{prefix}layers\.(?:{after})\..+", ""),) if after else ()),
        (rf"{prefix}embed_tokens\.weight", "token_embedding.embedding"),
        *(
            (rf"{prefix}layers\.(\d+)\.{name}\.{source}", rf"blocks.{path}.{target}[\1]")
            for name, path, leaves in (*_LAYER, *scales)
            for source, target in leaves.items()
        ),
        (rf"{prefix}norm\.weight", "final_norm.scale" if normed else ""),
        (r"lm_head\.weight", ""),
    )


WITH_VISION = r"(?:model\.)?(?:language_model\.)?(?:model\.)?"
"""Prefixes of a language model's keys in a model that also reads images."""
VISION_KEYS = (
    (r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..+", ""),
    (r"language_model\.lm_head\.weight", ""),
)
"""Rename rules that ignore the other keys of such a model."""

_MATRIX = {"weight": "kernel", "bias": "bias"}
_SCALE = {"weight": "scale"}
_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
}
_LAYER: Names = (
    *((rf"self_attn\.{name}_proj", f"attention.{name}", _MATRIX) for name in "qkv"),
    (r"self_attn\.o_proj", "attention.out", _MATRIX),
    *((rf"self_attn\.{name}_norm", f"attention.{name}_norm", _SCALE) for name in "qk"),
    *((rf"mlp\.{name}_proj", name, _MATRIX) for name in ("gate", "up", "down")),
)
"""Arrays of a layer except its norms."""
