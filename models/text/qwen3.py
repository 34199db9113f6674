"""Qwen3 as an encoder: the hidden states behind chosen layers, and no layer behind the last one.

Source: Yang et al. 2025 (Qwen3), section 2; transformers' Qwen3Model for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import embed
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.config import check_numbers, known
from models.text.qwen import Decoder, DecoderBlock, causal_bias, renames, rms_norm, turns_of


@dataclass(frozen=True)
class Qwen3Config:
    """`text_encoder/config.json` of a Qwen3; the defaults are those of transformers.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    attention_bias: bool = False
    hidden_act: str = "silu"

    def __post_init__(self) -> None:
        check_numbers("Qwen3", self)
        if self.hidden_act != "silu":
            raise ValueError(f"Qwen3 hidden_act must be silu, not {self.hidden_act!r}")
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
            normed_heads=True,
            biased_inputs=self.attention_bias,
            biased_output=self.attention_bias,
        )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3Config:
        """Read a parsed `config.json`, as transformers 4 wrote it or as 5 does.

        Keys that do not shape the network are passed over.

        Raises: ValueError: scaled positions or a sliding window, which are not served.
        """
        if config.get("use_sliding_window") or "sliding_attention" in config.get("layer_types", ()):
            raise ValueError("Qwen3 use_sliding_window must be false: every layer sees all tokens")
        given = {**config, "rope_theta": rope_theta("Qwen3", config, cls.rope_theta)}
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = given.get("num_attention_heads", cls.num_attention_heads)
        return cls(**known(cls, given))

    def state(self, index: int) -> int:
        """Number of layers in front of a hidden state.

        Args:
            index: in transformers' `hidden_states`, negative from the end. The first state is the
                embedding, which no layer leads to; the last is behind all layers and the norm.

        Raises: ValueError: there is no such state.
        """
        layers = self.num_hidden_layers
        found = index if index >= 0 else index + layers + 1
        if not 1 <= found <= layers:
            raise ValueError(f"Qwen3 has hidden states 1 to {layers}, none of them is {index}")
        return found


def rope_theta(network: str, config: Mapping[str, Any], default: float) -> float:
    """Return the base of the positions' frequencies.

    transformers 4 writes `rope_theta` and `rope_scaling`, 5 both as `rope_parameters`.

    Raises: ValueError: positions that are scaled.
    """
    given = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind != "default":
        raise ValueError(f"{network} rope_type must be default, not {kind!r}")
    return float(given.get("rope_theta", config.get("rope_theta", default)))


class Qwen3Encoder(nnx.Module):
    """Tokens → hidden states of chosen layers, side by side.

    It has only the layers that lead to them.

    Args:
        states: indices in transformers' `hidden_states`, in the order of the features.
    """

    def __init__(
        self,
        config: Qwen3Config,
        states: tuple[int, ...],
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        self.config, self.states = config, tuple(map(config.state, states))
        shape, read = config.decoder, max(self.states)
        self.token_embedding = embed(
            config.vocab_size, shape.width, ("vocab", "embed"), rngs=rngs, param_dtype=param_dtype
        )
        self.blocks = stack(
            lambda rngs: DecoderBlock(shape, attention, rngs=rngs, param_dtype=param_dtype),
            read,
            rngs,
        )
        self.final_norm = (
            rms_norm(shape.width, shape.epsilon, rngs=rngs, param_dtype=param_dtype)
            if read == config.num_hidden_layers
            else None
        )

    def __call__(
        self, tokens: Int[Array, "batch tokens"], mask: Bool[Array, "batch tokens"] | None = None
    ) -> Float[Array, "batch tokens features"]:
        """Encode; a token sees those before it, of which `mask` is True (left out: all are).

        Features of masked tokens are given too: they see the others, as in the reference.

        Args:
            mask: of texts that are padded on the right.
        """
        x = split(self.token_embedding.embedding[...][tokens], None, None, None)
        bias = causal_bias(jnp.ones(tokens.shape, bool) if mask is None else mask)
        turns = turns_of(np.arange(tokens.shape[1]), self.config.head_dim, self.config.rope_theta)
        last, given = scan(self.blocks, x, lambda block, x: block(x, bias, turns))
        if self.final_norm is not None:
            last = self.final_norm(last)
        behind = max(self.states)
        return jnp.concatenate(
            [last if state == behind else given[state] for state in self.states], axis=-1
        )


def renames_of(config: Qwen3Config, states: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Checkpoint key → path in the encoder of those states."""
    read, layers = max(map(config.state, states)), config.num_hidden_layers
    return renames(read, layers, normed=read == layers)
