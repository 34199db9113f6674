"""Base of Qwen's encoders: the hidden states of chosen layers, without the layers after them."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import Kinds, embed
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.qwen import (
    Decoder,
    DecoderBlock,
    RotaryTable,
    causal_bias,
    renames,
    rms_norm,
    rotary_table,
)


@runtime_checkable
class QwenSizes(Protocol):
    """Part of a model's config that shapes its encoder."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: number of token ids."""

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers of the whole model."""

    @property
    def rope_theta(self) -> float:
        """Base of the positions' frequencies."""

    @property
    def decoder(self) -> Decoder:
        """Dimensions of the encoder's transformer layers."""

    def state(self, index: int) -> int:
        """Return the number of layers before a hidden state.

        Raises: ValueError: there is no such state.
        """


class QwenEncoder(nnx.Module):
    """Qwen text encoder: tokens to the concatenated hidden states of chosen layers.

    It has only the layers before them.

    Args:
        states: indices in transformers' `hidden_states`, in the order of the features.
    """

    NORMED: ClassVar[bool] = True
    """Whether the state after all layers is normed, as in transformers."""

    def __init__(
        self,
        config: QwenSizes,
        states: tuple[int, ...],
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = default_attention,
    ) -> None:
        kinds = Kinds(rngs=rngs, param_dtype=param_dtype)
        self.config, self.states = config, tuple(map(config.state, states))
        shape, read = config.decoder, max(self.states)
        self.token_embedding = embed(config.vocab_size, shape.width, ("vocab", "embed"), **kinds)
        self.blocks = stack(partial(DecoderBlock, shape, attention), read, **kinds)
        self.final_norm = (
            rms_norm(shape.width, shape.epsilon, **kinds)
            if self.NORMED and read == config.num_hidden_layers
            else None
        )

    def __call__(
        self, tokens: Int[Array, "batch tokens"], mask: Bool[Array, "batch tokens"] | None = None
    ) -> Float[Array, "batch tokens features"]:
        """Encode tokens; each attends to earlier tokens for which `mask` is True (None: all).

        Masked tokens get features too: they attend to the others, as in the reference.

        Args:
            mask: for texts that are padded on the right.
        """
        head_dim = self.config.decoder.head_dim
        rope = rotary_table(np.arange(tokens.shape[1]), head_dim, self.config.rope_theta)
        return self.encoded(self.embedded(tokens), mask, rope)

    def embedded(self, tokens: Int[Array, "batch tokens"]) -> Float[Array, "batch tokens width"]:
        """Return the embeddings of tokens."""
        return split(self.token_embedding.embedding[...][tokens], None, None, None)

    def encoded(
        self,
        x: Float[Array, "batch tokens width"],
        mask: Bool[Array, "batch tokens"] | None,
        rope: RotaryTable,
    ) -> Float[Array, "batch tokens features"]:
        """Encode token embeddings with the given RoPE table."""
        bias = causal_bias(jnp.ones(x.shape[:2], bool) if mask is None else mask)
        last, given = scan(self.blocks, x, lambda block, x: block(x, bias, rope))
        if self.final_norm is not None:
            last = self.final_norm(last)
        last_state = max(self.states)
        return jnp.concatenate(
            [last if state == last_state else given[state] for state in self.states], axis=-1
        )


def layers_to(network: str, index: int, layers: int) -> int:
    """Return the number of decoder layers before a hidden state of a model with `layers` layers.

    Raises: ValueError: there is no such state.
    """
    state = index if index >= 0 else index + layers + 1
    if not 1 <= state <= layers:
        raise ValueError(f"{network} has hidden states 1 to {layers}, but not {index}")
    return state


def renames_up_to(
    config: QwenSizes,
    states: tuple[int, ...],
    prefix: str = r"(?:model\.)?",
    *,
    normed: bool = True,
) -> tuple[tuple[str, str], ...]:
    """Return rename rules for an encoder that ends with the last of those hidden states.

    Args:
        prefix: regular expression of the keys' prefix.
        normed: whether the state after all layers is normed.
    """
    read, layers = max(map(config.state, states)), config.num_hidden_layers
    return renames(read, layers, normed=normed and read == layers, prefix=prefix)
