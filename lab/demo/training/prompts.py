"""Tokenizes sentences for all text encoders, as the pipelines do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class Prompts:
    """Tokenizer of sentences for all text encoders of a demo model."""

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        self._tokenizers = tokenizers

    def __call__(self, prompts: list[str]) -> dict[str, np.ndarray]:
        """Return tokens, int32 [count, length] each, padded to the tokenizer's length."""
        unique = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        rows = np.array([unique[prompt] for prompt in prompts])
        return {
            name: tokenizer.encode(list(unique))[rows]
            for name, tokenizer in self._tokenizers.items()
        }
