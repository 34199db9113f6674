"""Weighted prompts → tokens: each with its weight, in as many chunks as its encoder is run on.

Source: AUTOMATIC1111's stable-diffusion-webui, modules/sd_hijack_clip.py: parts of different
weights are tokenized each by itself; chunks are filled one after the other, and end behind a comma
where one is near; `BREAK` fills up the one that it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from models.interface.pipeline import RequestError, RequestWarning
from models.spec.prompt_syntax import Passage, passages
from models.text.tokenizer import Tokenizer, from_word, shortened

COMMA_REACH = 20
"""Tokens that a chunk may be shorter to end behind a comma: AUTOMATIC1111's default."""


class Token(NamedTuple):
    """Token of a prompt, without markers."""

    id: int
    weight: float
    start: int
    """Offset of its word in the text, in characters."""


@dataclass(frozen=True)
class WeightedText:
    """Prompt without its brackets, and its tokens by passage; none follows a `BREAK` at the end."""

    text: str
    passages: tuple[tuple[Token, ...], ...]


class Chunks(NamedTuple):
    """Tokens of one prompt, with markers and padding, which weigh 1."""

    ids: Int[np.ndarray, "chunks tokens"]
    weights: Float32[np.ndarray, "chunks tokens"]
    mask: Bool[np.ndarray, "chunks tokens"]
    """False where there is only padding."""
    unread: str
    """End of the text that is in no chunk."""

    @property
    def is_weighted(self) -> bool:
        """Return whether any weight is not 1."""
        return bool((self.weights != 1).any())

    def of_count(self, count: int, tokenizer: Tokenizer) -> Chunks:
        """Return as many chunks, the last ones empty."""
        empty = _padded(tokenizer, [()] * (count - len(self.ids)), self.ids.shape[1], "")
        return self._joined(self, empty)

    def repeated(self, times: int) -> Chunks:
        """Return the chunks again and again."""
        return self._joined(*[self] * times)

    def _joined(self, *all_chunks: Chunks) -> Chunks:
        ids, weights, mask, _ = (list(own) for own in zip(*all_chunks, strict=True))
        return Chunks(
            np.concatenate(ids), np.concatenate(weights), np.concatenate(mask), self.unread
        )


def read_weighted(tokenizer: Tokenizer, field: str, prompt: str) -> WeightedText:
    """Tokenize a prompt. Raises: RequestError: its weights are out of range; names the field."""
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
    """Tokenize a passage that begins at `start`, each part by itself."""
    found = []
    pieces = tokenizer.pieces([part.text for part in passage])
    for (text, weight), own in zip(passage, pieces, strict=True):
        found += [Token(id, weight, start + at) for id, at in own]
        start += len(text)
    return tuple(found)


def in_chunks(tokenizer: Tokenizer, read: WeightedText, length: int, most: int) -> Chunks:
    """Return a prompt in at most so many chunks of `length` tokens, markers included."""
    size = length - sum(map(len, tokenizer.markers))
    comma = {piece.id for piece in tokenizer.pieces([","])[0]}
    found = list(chain.from_iterable(_cut(one, size, comma) for one in read.passages))
    return _padded(tokenizer, found[:most], length, _text_of(read, chain(*found[most:])))


def in_one(tokenizer: Tokenizer, read: WeightedText, length: int) -> Chunks:
    """Return the first `length` tokens of a prompt, markers included; a `BREAK` is but a space."""
    tokens = tuple(chain.from_iterable(read.passages))
    size = length - sum(map(len, tokenizer.markers))
    return _padded(tokenizer, [tokens[:size]], length, _text_of(read, tokens[size:]))


def _cut(tokens: Sequence[Token], size: int, comma: set[int]) -> list[Sequence[Token]]:
    """Cut a passage into chunks of at most `size` tokens."""
    found = []
    while len(tokens) > size:
        end = _end(tokens, size, comma)
        found.append(tokens[:end])
        tokens = tokens[end:]
    return [*found, tokens]


def _end(tokens: Sequence[Token], size: int, comma: set[int]) -> int:
    """Return the end of the first chunk: behind its last comma, if that is near."""
    if tokens[size].id in comma:
        return size
    ends = (index + 1 for index in range(size)[-COMMA_REACH:] if tokens[index].id in comma)
    return max(ends, default=size)


def _padded(
    tokenizer: Tokenizer, chunks: Sequence[Sequence[Token]], length: int, unread: str
) -> Chunks:
    before, behind = tokenizer.markers
    ids = np.full((len(chunks), length), tokenizer.padding, np.int32)
    weights, mask = np.ones(ids.shape, np.float32), np.zeros(ids.shape, bool)
    for row, tokens in enumerate(chunks):
        marked = [*before, *(token.id for token in tokens), *behind]
        ids[row, : len(marked)], mask[row, : len(marked)] = marked, True
        weights[row, len(before) :][: len(tokens)] = [token.weight for token in tokens]
    return Chunks(ids, weights, mask, unread)


def _text_of(read: WeightedText, unread: Iterable[Token]) -> str:
    first = next(iter(unread), None)
    return "" if first is None else from_word(read.text, first.start)


class Lines(NamedTuple):
    """Prompts that their encoder reads in one run each."""

    ids: Int[np.ndarray, "prompts tokens"]
    weights: Float32[np.ndarray, "prompts tokens"]
    mask: Bool[np.ndarray, "prompts tokens"]
    """False where there is only padding."""
    warnings: tuple[RequestWarning, ...]

    @property
    def weight_inputs(self) -> dict[str, np.ndarray]:
        """Inputs of an encoder whose features have weights; none if all are 1."""
        return {"token_weights": self.weights} if (self.weights != 1).any() else {}


def read_lines(encoder: str, tokenizer: Tokenizer, texts: Mapping[str, str], length: int) -> Lines:
    """Tokenize prompts, and warn of what is not read of them.

    Args:
        encoder: name of the encoder for people.
        texts: by request field.
        length: in tokens, markers included.

    Raises: RequestError: weights out of range; names the field.
    """
    read = {field: read_weighted(tokenizer, field, text) for field, text in texts.items()}
    lines = {field: in_one(tokenizer, one, length) for field, one in read.items()}
    warnings = (
        warning
        for field, line in lines.items()
        for warning in (
            *cut_warning(encoder, field, f"{length} tokens", line.unread),
            *_break_warning(field, read[field]),
        )
    )
    ids, weights, mask, _ = (list(own) for own in zip(*lines.values(), strict=True))
    return Lines(
        np.concatenate(ids), np.concatenate(weights), np.concatenate(mask), tuple(warnings)
    )


def _break_warning(field: str, read: WeightedText) -> tuple[RequestWarning, ...]:
    said = "BREAK is but a space: this model reads a prompt in one"
    return (RequestWarning(field, said),) if len(read.passages) > 1 else ()


def cut_warning(encoder: str, field: str, limit: str, unread: str) -> tuple[RequestWarning, ...]:
    """Warn of a prompt that is longer than its encoder reads, if it is."""
    said = f"{encoder} reads {limit}; not read: {shortened(unread)!r}"
    return (RequestWarning(field, said),) if unread else ()
