"""Qwen3 as an encoder: the hidden states of chosen layers, without the layers after them.

Source: Yang et al. 2025 (Qwen3), section 2; transformers' Qwen3Model for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from models.text.config import check_numbers, known_fields, rope_theta
from models.text.qwen import Decoder
from models.text.qwen_encoder import QwenEncoder, layers_to, renames_up_to

C = TypeVar("C", bound="Qwen3Config")


@dataclass(frozen=True)
class Qwen3Config:
    """Config of a Qwen3 (`text_encoder/config.json`), with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    TITLE: ClassVar[str] = "Qwen3"
    """Name in messages."""

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
        check_numbers(self.TITLE, self)
        if self.hidden_act != "silu":
            raise ValueError(f"{self.TITLE} hidden_act must be silu, not {self.hidden_act!r}")
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
            normed_heads=True,
            biased_inputs=self.attention_bias,
            biased_output=self.attention_bias,
        )

    @classmethod
    def from_dict(cls: type[C], config: Mapping[str, Any]) -> C:
        """Read a parsed `config.json` of transformers 4 or 5.

        Keys that do not shape the network are ignored.

        Raises: ValueError: scaled positions or a sliding window, which are not supported.
        """
        kinds = config.get("layer_types") or ()
        if config.get("use_sliding_window") or "sliding_attention" in kinds:
            raise ValueError("Qwen3 use_sliding_window must be false: every layer sees all tokens")
        given = {**config, "rope_theta": rope_theta(cls.TITLE, config, cls.rope_theta)}
        if given.get("num_key_value_heads") is None:
            given["num_key_value_heads"] = given.get("num_attention_heads", cls.num_attention_heads)
        return cls(**known_fields(cls, given))

    def state(self, index: int) -> int:
        """Return the number of layers before a hidden state.

        Args:
            index: in transformers' `hidden_states`, negative from the end. The first state is the
                embedding, which needs no layer; the last is after all layers and the norm.

        Raises: ValueError: there is no such state.
        """
        return layers_to(self.TITLE, index, self.num_hidden_layers)


class Qwen3Encoder(QwenEncoder):
    """Encoder from Qwen3's tokens to the concatenated hidden states of chosen layers."""


def renames_of(config: Qwen3Config, states: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Return rename rules for the encoder of those states."""
    return renames_up_to(config, states)
