"""Tokenization of SDXL prompts for both text encoders, plain or weighted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from models.spec.prompt_syntax import PromptSyntax
from models.text.tokenizer import ReadTexts, Tokenizer, cut_prompts
from models.text.weighted import Chunks, cut_warning, in_chunks, read_weighted

ENCODERS = ("CLIP-L", "CLIP-G")
"""Display names of SDXL's two text encoders."""
NETWORKS = ("clip", "clip_2")
"""Their names in the pipeline's weights; a refiner has the second."""
IDS, WEIGHTS = ("ids", "ids_2"), ("token_weights", "token_weights_2")
VECTORS = ("token_vectors", "token_vectors_2")
"""Names of the encoders' inputs: the model's first encoder, then its second."""
MAX_CHUNKS = 4
"""Maximum number of chunks per prompt, of 75 tokens each."""

Tokenizers = tuple[Tokenizer, ...]
Texts = tuple[Mapping[str, str], ...]
"""Texts of each encoder by request field: the prompt, then the negative prompt."""


def read_texts(
    syntax: PromptSyntax, texts: Texts, tokenizers: Tokenizers, tokens: int
) -> ReadTexts:
    """Tokenize all prompts for each encoder.

    `ids` and `ids_2` are [prompts, tokens], or [prompts, chunks, tokens] with several chunks.
    Weighted prompts add `token_weights` and `token_weights_2` of the same shape.

    Args:
        tokens: length of an encoder's input, markers included.

    Raises: RequestError: weights out of range; names the field.
    """
    return _READERS[syntax](texts, tokenizers, tokens)


def _plain(texts: Texts, tokenizers: Tokenizers, tokens: int) -> ReadTexts:
    encoders = tuple(zip(_names(tokenizers), texts, tokenizers, strict=True))
    ids = (tokenizer.encode([*prompts.values()], tokens) for _, prompts, tokenizer in encoders)
    cut = (
        warning
        for name, prompts, tokenizer in encoders
        for warning in cut_prompts(name, tokenizer, prompts, tokens)
    )
    return ReadTexts(dict(zip(IDS, ids, strict=False)), tuple(cut))


def _names(tokenizers: Tokenizers) -> tuple[str, ...]:
    """Return the text encoders' display names; a single encoder has the second."""
    return ENCODERS[-len(tokenizers) :]


def _weighted(texts: Texts, tokenizers: Tokenizers, tokens: int) -> ReadTexts:
    read = [
        {
            field: in_chunks(tokenizer, read_weighted(tokenizer, field, text), tokens, MAX_CHUNKS)
            for field, text in prompts.items()
        }
        for prompts, tokenizer in zip(texts, tokenizers, strict=True)
    ]
    limit = f"{MAX_CHUNKS} chunks of {tokens - 2} tokens"
    cut = (
        warning
        for name, prompts in zip(_names(tokenizers), read, strict=True)
        for field, chunks in prompts.items()
        for warning in cut_warning(name, field, limit, chunks.unread)
    )
    return ReadTexts(_inputs([[*prompts.values()] for prompts in read], tokenizers), tuple(cut))


def _inputs(read: Sequence[Sequence[Chunks]], tokenizers: Tokenizers) -> dict[str, np.ndarray]:
    """Build the encoders' inputs from chunks; weights are included if any is not 1.

    Both encoders' texts of a prompt are padded to the same number of chunks. The shorter of two
    prompts is repeated, which does not change attention's output.
    """
    counts = [max(len(chunks.ids) for chunks in both) for both in zip(*read, strict=True)]
    both = [
        [
            chunks.of_count(count, tokenizer).repeated(math.lcm(*counts) // count)
            for chunks, count in zip(prompts, counts, strict=True)
        ]
        for prompts, tokenizer in zip(read, tokenizers, strict=True)
    ]
    inputs = {
        name: _stacked(chunks.ids for chunks in prompts)
        for name, prompts in zip(IDS, both, strict=False)
    }
    if any(chunks.is_weighted for prompts in both for chunks in prompts):
        weights = (_stacked(chunks.weights for chunks in prompts) for prompts in both)
        inputs |= dict(zip(WEIGHTS, weights, strict=False))
    return inputs


def _stacked(prompts: Iterable[np.ndarray]) -> np.ndarray:
    """Stack the token chunks of all prompts; drop the chunk axis if there is one chunk."""
    stacked = np.stack([*prompts])
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked


_READERS: Mapping[PromptSyntax, Callable[[Texts, Tokenizers, int], ReadTexts]] = {
    "plain": _plain,
    "weighted": _weighted,
}
