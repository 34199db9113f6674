"""Prompts as SDXL reads them: tokens for both of its encoders, plain or weighted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from models.spec.prompt_syntax import PromptSyntax
from models.text.tokenizer import ReadTexts, Tokenizer, cut_prompts
from models.text.weighted import Chunks, cut_warning, in_chunks, read_weighted

ENCODERS = ("CLIP-L", "CLIP-G")
"""Names of the two encoders for people."""
IDS, WEIGHTS = ("ids", "ids_2"), ("token_weights", "token_weights_2")
"""Names of inputs, by encoder: the first that there is, the second."""
MAX_CHUNKS = 4
"""Chunks of a prompt that are read, of 75 tokens each."""

Tokenizers = tuple[Tokenizer, ...]
Texts = tuple[Mapping[str, str], ...]
"""Text of each encoder by request field: the prompt's, then the negative prompt's."""


def read_texts(
    syntax: PromptSyntax, texts: Texts, tokenizers: Tokenizers, tokens: int
) -> ReadTexts:
    """Tokenize all prompts, for each encoder.

    `ids` and `ids_2` are [prompts, tokens], or [prompts, chunks, tokens] of more than one chunk. Of
    the same shape are, where there are weights, `token_weights` and `token_weights_2`.

    Args:
        tokens: that an encoder is run on, markers included.

    Raises: RequestError: weights out of range; names the field.
    """
    return _READERS[syntax](texts, tokenizers, tokens)


def _plain(texts: Texts, tokenizers: Tokenizers, tokens: int) -> ReadTexts:
    encoders = tuple(zip(_names(tokenizers), texts, tokenizers, strict=True))
    ids = (tokenizer.encode([*own.values()], tokens) for _, own, tokenizer in encoders)
    cut = (
        warning
        for name, own, tokenizer in encoders
        for warning in cut_prompts(name, tokenizer, own, tokens)
    )
    return ReadTexts(dict(zip(IDS, ids, strict=False)), tuple(cut))


def _names(tokenizers: Tokenizers) -> tuple[str, ...]:
    """Return the encoders' names: one alone is the second."""
    return ENCODERS[-len(tokenizers) :]


def _weighted(texts: Texts, tokenizers: Tokenizers, tokens: int) -> ReadTexts:
    read = [
        {
            field: in_chunks(tokenizer, read_weighted(tokenizer, field, text), tokens, MAX_CHUNKS)
            for field, text in own.items()
        }
        for own, tokenizer in zip(texts, tokenizers, strict=True)
    ]
    limit = f"{MAX_CHUNKS} chunks of {tokens - 2} tokens"
    cut = (
        warning
        for name, own in zip(_names(tokenizers), read, strict=True)
        for field, chunks in own.items()
        for warning in cut_warning(name, field, limit, chunks.unread)
    )
    return ReadTexts(_inputs([[*own.values()] for own in read], tokenizers), tuple(cut))


def _inputs(read: Sequence[Sequence[Chunks]], tokenizers: Tokenizers) -> dict[str, np.ndarray]:
    """Return the inputs of chunks by encoder and prompt: weights only where one is not 1.

    Both texts of a prompt get as many chunks, the shorter one empty ones behind it. Of two prompts
    the shorter one is repeated: attention sees the same in two copies as in one.
    """
    counts = [max(len(one.ids) for one in both) for both in zip(*read, strict=True)]
    both = [
        [
            one.of_count(count, tokenizer).repeated(math.lcm(*counts) // count)
            for one, count in zip(own, counts, strict=True)
        ]
        for own, tokenizer in zip(read, tokenizers, strict=True)
    ]
    inputs = {name: _stacked(one.ids for one in own) for name, own in zip(IDS, both, strict=False)}
    if any(one.is_weighted for own in both for one in own):
        weights = (_stacked(one.weights for one in own) for own in both)
        inputs |= dict(zip(WEIGHTS, weights, strict=False))
    return inputs


def _stacked(prompts: Iterable[np.ndarray]) -> np.ndarray:
    """Stack the chunks of all prompts; one chunk each has no axis of its own."""
    stacked = np.stack([*prompts])
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked


_READERS: Mapping[PromptSyntax, Callable[[Texts, Tokenizers, int], ReadTexts]] = {
    "plain": _plain,
    "weighted": _weighted,
}
