"""Gemma 3's language model as an encoder: the hidden states of all layers.

Norms before and behind attention and feed-forward, and layers of two kinds: most see a window of
tokens, some see all, each kind with frequencies of its own.

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

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.activations import tanh_gelu
from models.nn.layers.norms import OffsetRMSNorm
from models.nn.layers.parameterised import embed, linear
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.config import check_numbers, known
from models.text.qwen import (
    Decoder,
    GroupedAttention,
    Tokens,
    Turns,
    causal_bias,
    renames,
    turns_of,
)

KINDS = ("sliding_attention", "full_attention")


class RopeBase(NamedTuple):
    """Positions of one kind of layer."""

    rope_theta: float
    """Base of the frequencies."""
    factor: float = 1.0
    """Number that positions are divided by."""


SLIDING, FULL = RopeBase(10_000.0), RopeBase(1_000_000.0)
"""Positions of both kinds where a config says nothing."""


@dataclass(frozen=True)
class Gemma3Config:
    """`text_config` of a Gemma 3; the defaults are those of transformers.

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
    """Number whose root the attention's logits are divided by."""
    sliding_window: int = 4096
    """Tokens that one sees in a sliding layer, itself among them."""
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
        """Shape of its layers."""
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

        transformers 4 writes bases of positions as fields and kinds of layers as a pattern, 5 all
        of them out. Keys that do not shape the network are passed over.

        Raises: ValueError: soft caps, attention to both sides, or positions of another kind.
        """
        given = {**config, **(config.get("text_config") or {})}
        for name in ("attn_logit_softcapping", "use_bidirectional_attention"):
            if given.get(name):
                raise ValueError(f"Gemma 3 {name} must be off, not {given[name]!r}")
        layers = given.get("num_hidden_layers", cls.num_hidden_layers)
        pattern = given.get("sliding_window_pattern", 6)
        kinds = given.get("layer_types") or [KINDS[n % pattern == 0] for n in range(1, layers + 1)]
        return cls(**known(cls, {**given, "layer_types": tuple(kinds), **_positions_of(given)}))


def _positions_of(config: Mapping[str, Any]) -> dict[str, RopeBase]:
    """Return both kinds of positions of a parsed config."""
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
    """Self-attention and feed-forward, each between two norms."""

    def __init__(
        self, shape: Decoder, attention: Attention, *, rngs: nnx.Rngs, param_dtype: DTypeLike
    ) -> None:
        dense = partial(linear, use_bias=False, rngs=rngs, param_dtype=param_dtype)
        norm = partial(OffsetRMSNorm, shape.width, shape.epsilon)
        self.attention = GroupedAttention(
            shape, attention, OffsetRMSNorm, rngs=rngs, param_dtype=param_dtype
        )
        self.attention_norm, self.attended_norm, self.feed_forward_norm, self.fed_norm = (
            norm(rngs=rngs, param_dtype=param_dtype) for _ in range(4)
        )
        self.gate = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.up = dense(shape.width, shape.inner, ("embed", "mlp"))
        self.down = dense(shape.inner, shape.width, ("mlp", "embed"))

    def __call__(self, x: Tokens, bias: Array, turns: Turns) -> Tokens:
        """Attend, then feed forward."""
        x = x + self.attended_norm(self.attention(self.attention_norm(x), bias, turns))
        normed = self.feed_forward_norm(x)
        return x + self.fed_norm(self.down(tanh_gelu(self.gate(normed)) * self.up(normed)))


class Gemma3Encoder(nnx.Module):
    """Tokens → the embeddings and the hidden states behind each layer, the last one normed."""

    def __init__(
        self,
        config: Gemma3Config,
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        self.config, shape = config, config.decoder
        self.token_embedding = embed(
            config.vocab_size, shape.width, ("vocab", "embed"), rngs=rngs, param_dtype=param_dtype
        )
        self.blocks = stack(
            lambda rngs: SandwichBlock(shape, attention, rngs=rngs, param_dtype=param_dtype),
            config.num_hidden_layers,
            rngs,
        )
        self.final_norm = OffsetRMSNorm(
            shape.width, shape.epsilon, rngs=rngs, param_dtype=param_dtype
        )

    def __call__(
        self, tokens: Int[Array, "batch tokens"], mask: Bool[Array, "batch tokens"] | None = None
    ) -> Float[Array, "batch tokens width states"]:
        """Encode; a token sees those before it, of which `mask` is True (left out: all are).

        Features of masked tokens mean nothing. Positions count from the first token, masked or
        not, as in the reference.

        Args:
            mask: of texts that are padded on either side.
        """
        seen = jnp.ones(tokens.shape, bool) if mask is None else mask
        biases = jnp.stack([causal_bias(seen, self.config.sliding_window), causal_bias(seen)])
        turns = jax.tree.map(lambda *kinds: jnp.stack(kinds), *self._turns(tokens.shape[1]))

        def apply(block: SandwichBlock, x: Array, kind: Array) -> Array:
            return block(x, biases[kind], jax.tree.map(lambda part: part[kind], turns))

        kinds = jnp.array([KINDS.index(kind) for kind in self.config.layer_types])
        last, given = scan(self.blocks, self.embedded(tokens), apply, kinds)
        return jnp.moveaxis(jnp.concatenate([given, self.final_norm(last)[None]]), 0, -1)

    def embedded(self, tokens: Int[Array, "batch tokens"]) -> Float[Array, "batch tokens width"]:
        """Return the embeddings of tokens, scaled by the root of the width."""
        table = self.token_embedding.embedding[...]
        scale = jnp.asarray(self.config.hidden_size**0.5, table.dtype)
        return split(table[tokens] * scale, None, None, None)

    def _turns(self, tokens: int) -> list[Turns]:
        """Turns of both kinds of layers."""
        places = np.arange(tokens, dtype=np.float32)
        return [
            turns_of(places / np.float32(kind.factor), self.config.head_dim, kind.rope_theta)
            for kind in (self.config.sliding, self.config.full)
        ]


_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attended_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "fed_norm",
}


def renames_of(config: Gemma3Config) -> tuple[tuple[str, str], ...]:
    """Checkpoint key → path in the encoder; what reads images is passed over."""
    layers = config.num_hidden_layers
    return (
        (r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..+", ""),
        *renames(
            layers,
            layers,
            normed=True,
            prefix=r"(?:model\.)?(?:language_model\.)?(?:model\.)?",
            norms=_NORMS,
        ),
        (r"language_model\.lm_head\.weight", ""),
    )
