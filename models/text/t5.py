"""T5's encoder: T5 1.0 (ReLU) and 1.1 (gated GELU).

Source: Raffel et al. 2020, section 2.1; Shazeer 2020 for the gate; transformers' T5EncoderModel
for the conventions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, embed, linear
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.config import check_numbers, known_fields

FEED_FORWARDS = ("relu", "gated-gelu")


@dataclass(frozen=True)
class T5Config:
    """Config of a T5 text encoder (`text_encoder_2/config.json`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"

    def __post_init__(self) -> None:
        check_numbers("T5", self)
        buckets, distance = (
            self.relative_attention_num_buckets,
            self.relative_attention_max_distance,
        )
        if buckets % 2 or buckets < 4 or distance <= buckets // 4:
            raise ValueError(
                "T5 relative_attention_num_buckets must be even and at least 4, and "
                "relative_attention_max_distance above a quarter of it, "
                f"not {buckets} and {distance}"
            )
        if self.feed_forward_proj not in FEED_FORWARDS:
            raise ValueError(
                f"T5 feed_forward_proj must be one of {', '.join(FEED_FORWARDS)}, "
                f"not {self.feed_forward_proj!r}"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> T5Config:
        """Read a parsed `config.json`; ignore keys that do not shape the network."""
        return cls(**known_fields(cls, config))


class T5Encoder(nnx.Module):
    """T5 encoder: pre-norm transformer whose layers share one relative position bias."""

    def __init__(
        self,
        config: T5Config,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config = config
        table = partial(embed, **kinds)
        self.token_embedding = table(config.vocab_size, config.d_model, ("vocab", "embed"))
        self.relative_bias = table(
            config.relative_attention_num_buckets, config.num_heads, (None, "heads")
        )
        self.blocks = stack(partial(T5Block, config, attention), config.num_layers, **kinds)
        self.final_norm = rms_norm(config, **kinds)

    def __call__(
        self,
        tokens: Int[Array, "batch tokens"],
        mask: Bool[Array, "batch tokens"] | None = None,
        vectors: Float[Array, "batch tokens d_model"] | None = None,
    ) -> Float[Array, "batch tokens d_model"]:
        """Encode tokens; only keys for which `mask` is True are attended to (None: all).

        Args:
            vectors: embeddings of negative tokens, in place of the vocabulary's.
        """
        x = self.token_embedding.embedding[...][tokens]
        if vectors is not None:
            x = jnp.where(tokens[..., None] < 0, vectors.astype(x.dtype), x)
        x = split(x, None, None, None)
        bias = position_bias(self.relative_bias, self.config, tokens.shape[1], mask)
        x, _ = scan(self.blocks, x, lambda block, x: block(x, bias))
        normed: Array = self.final_norm(x)
        return normed


def position_bias(
    table: nnx.Embed, config: T5Config, tokens: int, mask: Bool[Array, "batch tokens"] | None
) -> Float[Array, "... heads tokens tokens"]:
    """Build T5's logit bias: the table's values by distance, the minimum for masked keys."""
    buckets = relative_buckets(
        tokens, config.relative_attention_num_buckets, config.relative_attention_max_distance
    )
    bias = table.embedding[...].astype(jnp.float32)[buckets].transpose(2, 0, 1)[None]
    if mask is None:
        return bias
    return jnp.where(mask[:, None, None, :], bias, jnp.finfo(jnp.float32).min)


def relative_buckets(tokens: int, buckets: int, max_distance: int) -> Int[np.ndarray, "q k"]:
    """Return the bucket of each key relative to each query, in both directions.

    Half of the buckets are for keys before the query, half for keys after. In each half, the first
    half has one distance per bucket. The rest grow with the logarithm of the distance up to
    `max_distance`.
    Source: Raffel et al. 2020, section 2.1.
    """
    ahead = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    half, exact = buckets // 2, buckets // 4
    distance = np.abs(ahead)
    # float32 throughout: a boundary must round as it does in the reference.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    grown = ratio / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + grown.astype(np.int32), half - 1)
    buckets_of_keys: np.ndarray = (
        np.where(distance < exact, distance, far) + half * (ahead > 0)
    ).astype(np.int32)
    return buckets_of_keys


class T5Block(nnx.Module):
    """Pre-norm transformer layer: self-attention, then feed-forward.

    Source: Raffel et al. 2020, 2.1.

    Args:
        out_dtype: dtype of the feed-forward's last kernel; None: that of all others. If it is
            wider, so is the residual stream.
    """

    def __init__(
        self,
        config: T5Config,
        attention: Attention,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
        out_dtype: DTypeLike | None = None,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        norm = partial(rms_norm, config, **kinds)
        self.attention_norm, self.feed_forward_norm = norm(), norm()
        self.attention = _SelfAttention(config, attention, **kinds)
        feed_forward = _GatedGelu if config.feed_forward_proj == "gated-gelu" else _Relu
        self.feed_forward = feed_forward(config, **kinds, out_dtype=out_dtype or param_dtype)

    def __call__(self, x: Float[Array, "batch tokens d_model"], bias: Array) -> Array:
        """Attend, then feed forward; both compute in their kernels' dtype."""
        dtype = self.attention.q.kernel.dtype
        x = x + self.attention(self.attention_norm(x).astype(dtype), bias)
        return x + self.feed_forward(self.feed_forward_norm(x).astype(dtype))


class _SelfAttention(nnx.Module):
    def __init__(
        self, config: T5Config, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        dense = partial(linear, use_bias=False, rngs=rngs, param_dtype=param_dtype)
        inner = config.num_heads * config.d_kv
        self.heads, self.kernel = config.num_heads, attention
        self.q = dense(config.d_model, inner, ("embed", "heads"))
        self.k = dense(config.d_model, inner, ("embed", "heads"))
        self.v = dense(config.d_model, inner, ("embed", "heads"))
        self.out = dense(inner, config.d_model, ("heads", "embed"))

    def __call__(self, x: Array, bias: Array) -> Array:
        batch, tokens, _ = x.shape
        q, k, v = (
            layer(x).reshape(batch, tokens, self.heads, -1) for layer in (self.q, self.k, self.v)
        )
        # T5 folds the usual 1 / sqrt(dim) into its initialisation.
        return self.out(self.kernel(q, k, v, bias, scale=1.0).reshape(batch, tokens, -1))


class _Relu(nnx.Module):
    def __init__(
        self, config: T5Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike, out_dtype: DTypeLike
    ) -> None:
        dense = partial(linear, use_bias=False, rngs=rngs)
        width, inner = config.d_model, config.d_ff
        self.up = dense(width, inner, ("embed", "mlp"), param_dtype=param_dtype)
        self.down = dense(inner, width, ("mlp", "embed"), param_dtype=out_dtype)

    def __call__(self, x: Array) -> Array:
        return self._out(jax.nn.relu(self.up(x)))

    def _out(self, x: Array) -> Array:
        return self.down(x.astype(self.down.kernel.dtype))


class _GatedGelu(_Relu):
    def __init__(
        self, config: T5Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike, out_dtype: DTypeLike
    ) -> None:
        super().__init__(config, rngs=rngs, param_dtype=param_dtype, out_dtype=out_dtype)
        self.gate = linear(
            config.d_model,
            config.d_ff,
            ("embed", "mlp"),
            use_bias=False,
            rngs=rngs,
            param_dtype=param_dtype,
        )

    def __call__(self, x: Array) -> Array:
        return self._out(jax.nn.gelu(self.gate(x), approximate=True) * self.up(x))


def rms_norm(config: T5Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> nnx.RMSNorm:
    """Build an RMS norm of the residual stream's width."""
    return nnx.RMSNorm(
        config.d_model,
        epsilon=config.layer_norm_epsilon,
        scale_metadata={"axes": ("embed",)},
        param_dtype=param_dtype,
        rngs=rngs,
    )


_ATTENTION = r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention\."
_FEED_FORWARD = r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\."

SHARED_RENAMES: tuple[tuple[str, str], ...] = (
    # The same table under two names; a file has either or both.
    (r"shared\.weight", "token_embedding.embedding"),
    (r"encoder\.embed_tokens\.weight", "token_embedding.embedding"),
    (rf"{_ATTENTION}([qkv])\.weight", r"blocks.attention.\2.kernel[\1]"),
    (rf"{_ATTENTION}o\.weight", r"blocks.attention.out.kernel[\1]"),
    (r"encoder\.block\.(\d+)\.layer\.0\.layer_norm\.weight", r"blocks.attention_norm.scale[\1]"),
    (r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.weight", r"blocks.feed_forward_norm.scale[\1]"),
    (rf"{_FEED_FORWARD}(?:wi|wi_1)\.weight", r"blocks.feed_forward.up.kernel[\1]"),
    (rf"{_FEED_FORWARD}wi_0\.weight", r"blocks.feed_forward.gate.kernel[\1]"),
    (rf"{_FEED_FORWARD}wo\.weight", r"blocks.feed_forward.down.kernel[\1]"),
    (r"encoder\.final_layer_norm\.weight", "final_norm.scale"),
    (r"(?:decoder\..+|lm_head\.weight)", ""),
)
"""Renames that T5 and UMT5 share."""

RENAMES: tuple[tuple[str, str], ...] = (
    *SHARED_RENAMES,
    (
        r"encoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
        "relative_bias.embedding",
    ),
)
"""Rename rules of checkpoint keys. For a path with two keys (tied arrays) the first is used."""
