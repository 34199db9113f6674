"""Sentences to the tokens of both encoders, as the pipeline makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.demo.tokenizers import CLIP_LENGTH, T5_LENGTH, write_clip, write_t5
from models.text.tokenizer import ClipTokenizer, T5Tokenizer


class Prompts:
    """Both tokenizers, made in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        write_clip(folder / "tokenizer")
        write_t5(folder / "tokenizer_2")
        self._clip = ClipTokenizer(folder / "tokenizer")
        self._t5 = T5Tokenizer(folder / "tokenizer_2")

    def __call__(self, prompts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of CLIP and of T5, int32 [count, length] each, padded."""
        known = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        rows = np.array([known[prompt] for prompt in prompts])
        clip = self._clip.encode(list(known), CLIP_LENGTH)
        return clip[rows], self._t5.encode(list(known), T5_LENGTH)[rows]
