"""Language model of Mistral Small 3 as an encoder: the hidden states of chosen layers.

Source: transformers' Mistral3ForConditionalGeneration, whose vision tower reads no image here, and
MistralModel for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from models.checkpoint.key_mapping import Renames
from models.checkpoint.llama_names import INTERLEAVED, separated
from models.nn.attention.attention import Attention, default_attention
from models.spec.field_types import MAX_TEXT_TOKENS
from models.text.qwen import VISION_KEYS, WITH_VISION, Decoder
from models.text.qwen3 import Qwen3Config
from models.text.qwen_encoder import QwenEncoder, renames_up_to


@dataclass(frozen=True)
class MistralConfig(Qwen3Config):
    """Config of a Mistral Small 3 (`text_encoder/config.json`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    TITLE: ClassVar[str] = "Mistral"

    vocab_size: int = 32_000
    intermediate_size: int = 14_336

    @property
    def decoder(self) -> Decoder:
        """Dimensions of its layers, whose queries and keys are not normed."""
        return replace(super().decoder, normed_heads=False)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MistralConfig:
        """Read a parsed `config.json`: of the language model alone, or of the whole model.

        Keys that do not shape the network are ignored.

        Raises: ValueError: scaled positions, or a window of fewer tokens than a text may have.
        """
        given = {"num_key_value_heads": 8, **config, **(config.get("text_config") or {})}
        window = given.get("sliding_window")
        if window is not None and window < MAX_TEXT_TOKENS:
            raise ValueError(
                f"Mistral sliding_window must be null or at least {MAX_TEXT_TOKENS}, not {window}"
            )
        heads = given.get("num_attention_heads", cls.num_attention_heads)
        head_dim = given.get("head_dim") or given.get("hidden_size", cls.hidden_size) // heads
        return super().from_dict({**given, "head_dim": head_dim})


def attention_of_padded(
    q: Float[Array, "batch q_tokens heads dim"],
    k: Float[Array, "batch kv_tokens heads dim"],
    v: Float[Array, "batch kv_tokens heads dim"],
    bias: Float[Array, ...] | None = None,
    scale: float | None = None,
) -> Float[Array, "batch q_tokens heads dim"]:
    """Compute attention that is zero for queries without a visible key, as in torch.

    Padding on the left has such queries, and the transformer attends to its features.
    Source: torch.nn.functional.scaled_dot_product_attention.
    """
    attended = default_attention(q, k, v, bias, scale)
    if bias is None:
        return attended
    has_key = (bias == 0).any(axis=-1)
    return jnp.where(jnp.swapaxes(has_key, 1, 2)[..., None], attended, 0)


class MistralEncoder(QwenEncoder):
    """Encoder from Mistral's tokens to the concatenated hidden states of chosen layers.

    Texts may be padded on either side.
    """

    def __init__(
        self,
        config: MistralConfig,
        states: tuple[int, ...],
        *,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        attention: Attention = attention_of_padded,
    ) -> None:
        super().__init__(config, states, rngs=rngs, param_dtype=param_dtype, attention=attention)


def renames_of(config: MistralConfig, states: tuple[int, ...]) -> Renames:
    """Return rename rules for the encoder of those states; the vision part is ignored."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    of_llama = (
        (
            rf"{WITH_VISION}layers\.(\d+)\.self_attn\.{letter}_proj\.{INTERLEAVED}\.weight",
            rf"blocks.attention.{letter}.kernel[\1]",
            partial(separated, count),
        )
        for letter, count in heads.items()
    )
    return (*renames_up_to(config, states, WITH_VISION), *of_llama, *VISION_KEYS)
