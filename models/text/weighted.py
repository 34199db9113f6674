"""Tokenization of weighted prompts: a weight per token, in as many chunks as the encoder runs on.

Source: AUTOMATIC1111's stable-diffusion-webui, modules/sd_hijack_clip.py: parts of different
weights are tokenized separately. Chunks are filled one after the other, and end after a comma if
one is near. `BREAK` fills up the current chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from models.interface.pipeline import RequestWarning
from models.spec.prompt_syntax import Passage, passages
from models.spec.request import RequestError
from models.text.tokenizer import Tokenizer, from_word, shortened

COMMA_REACH = 20
"""Tokens by which a chunk may be shortened to end after a comma: AUTOMATIC1111's default."""


class Token(NamedTuple):
    """Token of a weighted prompt, without markers."""

    id: int
    weight: float
    start: int
    """Offset of the token's word in the text, in characters."""


@dataclass(frozen=True)
class WeightedText:
    """Prompt without its brackets, and its tokens by passage.

    A `BREAK` at the end starts no passage.
    """

    text: str
    passages: tuple[tuple[Token, ...], ...]


class Chunks(NamedTuple):
    """Tokens of one prompt, with markers and padding of weight 1."""

    ids: Int[np.ndarray, "chunks tokens"]
    weights: Float32[np.ndarray, "chunks tokens"]
    mask: Bool[np.ndarray, "chunks tokens"]
    """False for padding."""
    unread: str
    """End of the text that no chunk contains."""

    @property
    def is_weighted(self) -> bool:
        """True if any token weight is not 1."""
        return bool((self.weights != 1).any())

    def of_count(self, count: int, tokenizer: Tokenizer) -> Chunks:
        """Append empty chunks to a prompt, up to that count."""
        empty = _padded(tokenizer, [()] * (count - len(self.ids)), self.ids.shape[1], "")
        return self._joined(self, empty)

    def repeated(self, times: int) -> Chunks:
        """Repeat the prompt's chunks `times` times."""
        return self._joined(*[self] * times)

    def _joined(self, *all_chunks: Chunks) -> Chunks:
        ids, weights, mask, _ = (list(parts) for parts in zip(*all_chunks, strict=True))
        return Chunks(
            np.concatenate(ids), np.concatenate(weights), np.concatenate(mask), self.unread
        )


def read_weighted(tokenizer: Tokenizer, field: str, prompt: str) -> WeightedText:
    """Tokenize a prompt by passage.

    Raises: RequestError: its weights are out of range; names the field.
    """
    try:
        read = passages(prompt)
    except ValueError as error:
        raise RequestError(field, str(error)) from None
    text, tokens = "", []
    for passage in read:
        tokens.append(_tokens(tokenizer, passage, len(text)))
        text += "".join(part.text for part in passage) + " "
    return WeightedText(text, tuple(tokens if tokens[-1] else tokens[:-1] or tokens))


def _tokens(tokenizer: Tokenizer, passage: Passage, start: int) -> tuple[Token, ...]:
    """Tokenize a passage of a prompt, which begins at `start`, each part separately."""
    tokens = []
    pieces = tokenizer.pieces([part.text for part in passage])
    for (text, weight), of_part in zip(passage, pieces, strict=True):
        tokens += [Token(id, weight, start + at) for id, at in of_part]
        start += len(text)
    return tuple(tokens)


def in_chunks(tokenizer: Tokenizer, read: WeightedText, length: int, most: int) -> Chunks:
    """Split a prompt into at most `most` chunks of `length` tokens, markers included."""
    size = length - sum(map(len, tokenizer.markers))
    comma = {piece.id for piece in tokenizer.pieces([","])[0]}
    chunks = list(chain.from_iterable(_cut(passage, size, comma) for passage in read.passages))
    return _padded(tokenizer, chunks[:most], length, _text_of(read, chain(*chunks[most:])))


def in_one(tokenizer: Tokenizer, read: WeightedText, length: int) -> Chunks:
    """Return the first `length` tokens of a prompt, markers included; `BREAK` acts as a space."""
    tokens = tuple(chain.from_iterable(read.passages))
    size = length - sum(map(len, tokenizer.markers))
    return _padded(tokenizer, [tokens[:size]], length, _text_of(read, tokens[size:]))


def _cut(tokens: Sequence[Token], size: int, comma: set[int]) -> list[Sequence[Token]]:
    """Cut a prompt's passage into chunks of at most `size` tokens."""
    chunks = []
    while len(tokens) > size:
        end = _end(tokens, size, comma)
        chunks.append(tokens[:end])
        tokens = tokens[end:]
    return [*chunks, tokens]


def _end(tokens: Sequence[Token], size: int, comma: set[int]) -> int:
    """Return where a chunk of a prompt ends: after its last comma, if that is near."""
    if tokens[size].id in comma:
        return size
    ends = (index + 1 for index in range(size)[-COMMA_REACH:] if tokens[index].id in comma)
    return max(ends, default=size)


def _padded(
    tokenizer: Tokenizer, chunks: Sequence[Sequence[Token]], length: int, unread: str
) -> Chunks:
    before, after = tokenizer.markers
    ids = np.full((len(chunks), length), tokenizer.padding, np.int32)
    weights, mask = np.ones(ids.shape, np.float32), np.zeros(ids.shape, bool)
    for row, tokens in enumerate(chunks):
        marked = [*before, *(token.id for token in tokens), *after]
        ids[row, : len(marked)], mask[row, : len(marked)] = marked, True
        weights[row, len(before) :][: len(tokens)] = [token.weight for token in tokens]
    return Chunks(ids, weights, mask, unread)


def _text_of(read: WeightedText, unread: Iterable[Token]) -> str:
    first = next(iter(unread), None)
    return "" if first is None else from_word(read.text, first.start)


class Lines(NamedTuple):
    """Prompts whose tokens their encoder reads in one run each."""

    ids: Int[np.ndarray, "prompts tokens"]
    weights: Float32[np.ndarray, "prompts tokens"]
    mask: Bool[np.ndarray, "prompts tokens"]
    """False for padding."""
    warnings: tuple[RequestWarning, ...]

    @property
    def weight_inputs(self) -> dict[str, np.ndarray]:
        """Encoder inputs with the weights; empty if all weights are 1."""
        return {"token_weights": self.weights} if (self.weights != 1).any() else {}


def read_lines(encoder: str, tokenizer: Tokenizer, texts: Mapping[str, str], length: int) -> Lines:
    """Tokenize prompts, and warn of text that is not read.

    Args:
        encoder: display name.
        texts: by request field.
        length: in tokens, markers included.

    Raises: RequestError: weights out of range; names the field.
    """
    read = {field: read_weighted(tokenizer, field, text) for field, text in texts.items()}
    lines = {field: in_one(tokenizer, weighted, length) for field, weighted in read.items()}
    warnings = (
        warning
        for field, line in lines.items()
        for warning in (
            *cut_warning(encoder, field, f"{length} tokens", line.unread),
            *_break_warning(field, read[field]),
        )
    )
    ids, weights, mask, _ = (list(parts) for parts in zip(*lines.values(), strict=True))
    return Lines(
        np.concatenate(ids), np.concatenate(weights), np.concatenate(mask), tuple(warnings)
    )


def _break_warning(field: str, read: WeightedText) -> tuple[RequestWarning, ...]:
    message = "BREAK acts as a space: this model encodes a prompt in one chunk"
    return (RequestWarning(field, message),) if len(read.passages) > 1 else ()


def cut_warning(encoder: str, field: str, limit: str, unread: str) -> tuple[RequestWarning, ...]:
    """Return a warning if part of a prompt is longer than its encoder reads."""
    message = f"{encoder} reads {limit}; not read: {shortened(unread)!r}"
    return (RequestWarning(field, message),) if unread else ()
