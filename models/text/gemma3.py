"""Gemma 3's language model as an encoder that returns the hidden states of all layers.

Norms are before and after attention and feed-forward. Most layers attend to a window of tokens,
some to all; each kind has frequencies of its own.

Source: Gemma Team 2025 (Gemma 3), section 2; transformers' Gemma3TextModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.checkpoint.key_mapping import Renames
from models.checkpoint.llama_names import PLUS_ONE
from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import OffsetRMSNorm
from models.nn.layers.parameterised import Kinds, embed, linear
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.config import check_numbers, known_fields
from models.text.qwen import (
    VISION_KEYS,
    WITH_VISION,
    Decoder,
    GroupedAttention,
    RotaryTable,
    Tokens,
    causal_bias,
    renames,
    rotary_table,
)

KINDS = ("sliding_attention", "full_attention")


class RopeBase(NamedTuple):
    """RoPE parameters of one kind of Gemma 3's layers: global or sliding window."""

    rope_theta: float
    """Base of the RoPE frequencies."""
    factor: float = 1.0
    """Divisor of positions."""


SLIDING, FULL = RopeBase(10_000.0), RopeBase(1_000_000.0)
"""Default RoPE parameters of both kinds of layers."""


@dataclass(frozen=True)
class Gemma3Config:
    """Config of a Gemma 3's language model (`text_config`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 262_208
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    rms_norm_eps: float = 1e-6
    query_pre_attn_scalar: int = 256
    """Attention logits are divided by the root of this number."""
    sliding_window: int = 4096
    """Tokens that a token attends to in a sliding layer, including itself."""
    layer_types: tuple[str, ...] = ()
    """Kind of each layer, one of `KINDS`."""
    sliding: RopeBase = SLIDING
    full: RopeBase = FULL
    attention_bias: bool = False
    hidden_activation: str = "gelu_pytorch_tanh"

    def __post_init__(self) -> None:
        check_numbers("Gemma 3", self)
        if self.hidden_activation != "gelu_pytorch_tanh":
            raise ValueError(
                "Gemma 3 hidden_activation must be gelu_pytorch_tanh, not "
                f"{self.hidden_activation!r}"
            )
        if len(self.layer_types) != self.num_hidden_layers or {*self.layer_types} - {*KINDS}:
            raise ValueError(
                f"Gemma 3 layer_types must be one of {KINDS} for each of {self.num_hidden_layers} "
                f"layers, not {self.layer_types}"
            )
        _ = self.decoder  # checks the heads

    @property
    def decoder(self) -> Decoder:
        """Dimensions of the encoder's transformer layers."""
        return Decoder(
            self.hidden_size,
            self.intermediate_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.rms_norm_eps,
            biased_inputs=self.attention_bias,
            biased_output=self.attention_bias,
            logit_scale=self.query_pre_attn_scalar**-0.5,
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Gemma3Config:
        """Read a parsed `config.json`: of the language model alone, or of the whole model.

        transformers 4 writes RoPE bases as fields and kinds of layers as a pattern, 5 lists all of
        them. Keys that do not shape the network are ignored.

        Raises: ValueError: soft caps, bidirectional attention, or an unsupported `rope_type`.
        """
        given = {**config, **(config.get("text_config") or {})}
        for name in ("attn_logit_softcapping", "use_bidirectional_attention"):
            if given.get(name):
                raise ValueError(f"Gemma 3 {name} must be off, not {given[name]!r}")
        layers = given.get("num_hidden_layers", cls.num_hidden_layers)
        pattern = given.get("sliding_window_pattern", 6)
        kinds = given.get("layer_types") or [KINDS[n % pattern == 0] for n in range(1, layers + 1)]
        return cls(
            **known_fields(cls, {**given, "layer_types": tuple(kinds), **_positions_of(given)})
        )


def _positions_of(config: Mapping[str, Any]) -> dict[str, RopeBase]:
    """Return the RoPE parameters of both kinds of layers from a parsed config."""
    stated = config.get("rope_parameters") or {}
    full = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    sliding = {"rope_theta": config.get("rope_local_base_freq")}
    return {
        "sliding": _positions(stated.get(KINDS[0]) or sliding, SLIDING),
        "full": _positions(stated.get(KINDS[1]) or full, FULL),
    }


def _positions(stated: Mapping[str, Any], default: RopeBase) -> RopeBase:
    kind = stated.get("rope_type", "default")
    if kind not in ("default", "linear"):
        raise ValueError(f"Gemma 3 rope_type must be default or linear, not {kind!r}")
    factor = stated["factor"] if kind == "linear" else 1.0
    return RopeBase(float(stated.get("rope_theta") or default.rope_theta), float(factor))


class SandwichBlock(nnx.Module):
    """Transformer layer with norms before and after self-attention and feed-forward."""

    def __init__(
        self, shape: Decoder, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        dense = partial(linear, use_bias=False, **kinds)
        norm = partial(OffsetRMSNorm, shape.width, shape.epsilon)
        self.attention = GroupedAttention(shape, attention, OffsetRMSNorm, **kinds)
        self.attention_norm, self.attended_norm, self.feed_forward_norm, self.fed_norm = (
            norm(**kinds) for _ in range(4)
        )
        self.gate = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.up = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.down = dense(shape.inner, shape.width, ("mlp", "embed"))

    def __call__(self, x: Tokens, bias: Array, rope: RotaryTable) -> Tokens:
        """Apply self-attention, then the feed-forward."""
        x = x + self.attended_norm(self.attention(self.attention_norm(x), bias, rope))
        normed = self.feed_forward_norm(x)
        return x + self.fed_norm(self.down(tanh_gelu(self.gate(normed)) * self.up(normed)))


class Gemma3Encoder(nnx.Module):
    """Encoder from tokens to the embeddings and each layer's hidden states, the last one normed."""

    def __init__(
        self,
        config: Gemma3Config,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config, shape = config, config.decoder
        self.token_embedding = embed(config.vocab_size, shape.width, ("vocab", "embed"), **kinds)
        self.blocks = stack(
            partial(SandwichBlock, shape, attention), config.num_hidden_layers, **kinds
        )
        self.final_norm = OffsetRMSNorm(shape.width, shape.epsilon, **kinds)

    def __call__(
        self, tokens: Int[Array, "batch tokens"], mask: Bool[Array, "batch tokens"] | None = None
    ) -> Float[Array, "batch tokens width states"]:
        """Encode tokens; each attends to earlier tokens for which `mask` is True (None: all).

        Features of masked tokens are meaningless. Positions count from the first token, masked or
        not, as in the reference.

        Args:
            mask: for texts that are padded on either side.
        """
        is_visible = jnp.ones(tokens.shape, bool) if mask is None else mask
        biases = jnp.stack(
            [causal_bias(is_visible, self.config.sliding_window), causal_bias(is_visible)]
        )
        rope = jax.tree.map(lambda *kinds: jnp.stack(kinds), *self._rotary_tables(tokens.shape[1]))

        def apply(block: SandwichBlock, x: Array, kind: Array) -> Array:
            return block(x, biases[kind], jax.tree.map(lambda part: part[kind], rope))

        kinds = jnp.array([KINDS.index(kind) for kind in self.config.layer_types])
        last, given = scan(self.blocks, self.embedded(tokens), apply, kinds)
        return jnp.moveaxis(jnp.concatenate([given, self.final_norm(last)[None]]), 0, -1)

    def embedded(self, tokens: Int[Array, "batch tokens"]) -> Float[Array, "batch tokens width"]:
        """Return the embeddings of tokens, scaled by the root of the width."""
        table = self.token_embedding.embedding[...]
        scale = jnp.asarray(self.config.hidden_size**0.5, table.dtype)
        return split(table[tokens] * scale, None, None, None)

    def _rotary_tables(self, tokens: int) -> list[RotaryTable]:
        """Compute the RoPE tables of both kinds of Gemma 3's layers."""
        places = np.arange(tokens, dtype=np.float32)
        return [
            rotary_table(places / np.float32(kind.factor), self.config.head_dim, kind.rope_theta)
            for kind in (self.config.sliding, self.config.full)
        ]


_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attended_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "fed_norm",
}


def renames_of(config: Gemma3Config) -> Renames:
    """Return rename rules from checkpoint keys to encoder paths; the vision part is ignored."""
    layers = config.num_hidden_layers
    rules = renames(layers, layers, normed=True, prefix=WITH_VISION, norms=_NORMS)
    of_llama = (
        (f"{expression.removesuffix('weight')}{PLUS_ONE}\\.weight", path, _minus_one)
        for expression, path in rules
        if "norm.scale" in path
    )
    return (*rules, *of_llama, *VISION_KEYS)


def _minus_one(scale: np.ndarray) -> np.ndarray:
    """Return a norm's scale as the authors store it, from llama.cpp's."""
    return scale - 1
