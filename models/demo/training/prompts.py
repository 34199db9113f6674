"""Sentences to the tokens of every text encoder, as the pipelines make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Prompts:
    """Tokenizers by text encoder."""

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        self._tokenizers = tokenizers

    def __call__(self, prompts: list[str]) -> dict[str, np.ndarray]:
        """Tokens, int32 [count, length] each, padded to the tokenizer's own length."""
        known = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        rows = np.array([known[prompt] for prompt in prompts])
        return {
            name: tokenizer.encode(list(known))[rows]
            for name, tokenizer in self._tokenizers.items()
        }
