"""Qwen's language models as encoders: the hidden states behind chosen layers, and no layer more."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from models.nn.attention.attention import Attention, default_attention
from models.nn.layers.parameterised import embed
from models.nn.layers.scanned import scan, stack
from models.parallel.placement import split
from models.text.qwen import Decoder, DecoderBlock, Turns, causal_bias, renames, rms_norm, turns_of


@runtime_checkable
class QwenSizes(Protocol):
    """Part of a model's config that shapes its encoder."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers of the whole model."""

    @property
    def rope_theta(self) -> float:
        """Base of the positions' frequencies."""

    @property
    def decoder(self) -> Decoder:
        """Shape of its layers."""

    def state(self, index: int) -> int:
        """Number of layers in front of a hidden state. Raises: ValueError: there is none."""


class QwenEncoder(nnx.Module):
    """Tokens → hidden states of chosen layers, side by side.

    It has only the layers that lead to them.

    Args:
        states: indices in transformers' `hidden_states`, in the order of the features.
    """

    def __init__(
        self,
        config: QwenSizes,
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
        head_dim = self.config.decoder.head_dim
        turns = turns_of(np.arange(tokens.shape[1]), head_dim, self.config.rope_theta)
        return self.encoded(self.embedded(tokens), mask, turns)

    def embedded(self, tokens: Int[Array, "batch tokens"]) -> Float[Array, "batch tokens width"]:
        """Return the embeddings of tokens."""
        return split(self.token_embedding.embedding[...][tokens], None, None, None)

    def encoded(
        self,
        x: Float[Array, "batch tokens width"],
        mask: Bool[Array, "batch tokens"] | None,
        turns: Turns,
    ) -> Float[Array, "batch tokens features"]:
        """Encode embeddings that stand at positions of their own."""
        bias = causal_bias(jnp.ones(x.shape[:2], bool) if mask is None else mask)
        last, given = scan(self.blocks, x, lambda block, x: block(x, bias, turns))
        if self.final_norm is not None:
            last = self.final_norm(last)
        behind = max(self.states)
        return jnp.concatenate(
            [last if state == behind else given[state] for state in self.states], axis=-1
        )


def layers_to(network: str, index: int, layers: int) -> int:
    """Return the number of layers in front of a hidden state of a model with so many.

    Raises: ValueError: there is no such state.
    """
    found = index if index >= 0 else index + layers + 1
    if not 1 <= found <= layers:
        raise ValueError(f"{network} has hidden states 1 to {layers}, none of them is {index}")
    return found


def renames_up_to(
    config: QwenSizes, states: tuple[int, ...], prefix: str = r"(?:model\.)?"
) -> tuple[tuple[str, str], ...]:
    """Checkpoint key → path in the encoder of those states.

    Args:
        prefix: regular expression of what the keys begin with.
    """
    read, layers = max(map(config.state, states)), config.num_hidden_layers
    return renames(read, layers, normed=read == layers, prefix=prefix)
