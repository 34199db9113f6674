"""Language model of Qwen3-VL as an encoder of texts: a Qwen3 whose last norm is not applied.

Source: Bai et al. 2025 (Qwen3-VL), section 2; transformers' Qwen3VLTextModel; diffusers
pipeline_qwenimage21.py for the state before the norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from models.checkpoint.key_mapping import Renames
from models.text.qwen3 import Qwen3Config
from models.text.qwen_encoder import QwenEncoder, renames_up_to

PREFIX = r"(?:model\.)?(?:language_model\.)?(?:model\.)?"


@dataclass(frozen=True)
class Qwen3VLConfig(Qwen3Config):
    """Config of a Qwen3-VL's language model, with transformers' defaults.

    Raises:
        ValueError: a value that the network cannot have, by name.
    """

    rope_theta: float = 500_000.0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`: of the language model alone, or of the whole model.

        A token of a text has the same position on all three axes (mrope), as in Qwen3.

        Raises: ValueError: scaled positions or a sliding window, which are not supported.
        """
        return super().from_dict({**config, **(config.get("text_config") or {})})


class Qwen3VLEncoder(QwenEncoder):
    """Encoder from Qwen3-VL's tokens to hidden states; the last is before the model's norm."""

    NORMED = False


def renames_of(config: Qwen3VLConfig, states: tuple[int, ...]) -> Renames:
    """Return rename rules for the encoder of those states; the vision part is ignored."""
    names = renames_up_to(config, states, PREFIX, normed=False)
    return ((r"(?:model\.)?visual\..+", ""), *names)
