"""Prompts with embeddings (textual inversion): tokens that no vocabulary has, with their vectors.

Source: Gal et al. 2022, section 4; diffusers' TextualInversionLoaderMixin for texts on both sides
of a name, which are tokenized separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from models.spec.embeddings import mentions, path_of
from models.spec.lora import RequestedLora
from models.text.tokenizer import Piece, ReadTexts, Tokenizer, Tokens, from_word


class EmbeddingTokenizer(Tokenizer):
    """Tokenizer in which the name of an embedding is one token for each of its vectors.

    These tokens are negative: -1 is the first vector of all embeddings, -2 the second. A name that
    `embedding:` introduces, and that no embedding has, is no token.
    """

    def __init__(self, inner: Tokenizer, counts: Mapping[str, int]) -> None:
        """Wrap a tokenizer, to read the names of embeddings.

        Args:
            counts: number of vectors of each embedding, by name.
        """
        self._inner = inner
        ends = [*accumulate(counts.values())]
        self._tokens = {
            name: range(count - end - 1, -end - 1, -1)
            for (name, count), end in zip(counts.items(), ends, strict=True)
        }

    @property
    def max_length(self) -> int:
        """Maximum tokens of the encoder."""
        return self._inner.max_length

    @property
    def markers(self) -> tuple[list[int], list[int]]:
        """Tokens before and after each text."""
        return self._inner.markers

    @property
    def padding(self) -> int:
        """Token that fills the positions after the end marker."""
        return self._inner.padding

    def pieces(self, texts: Sequence[str]) -> list[list[Piece]]:
        """Return the tokens of untruncated texts, without markers."""
        return [self._pieces(text) for text in texts]

    def _pieces(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        start = 0
        for mention in mentions(text, self._tokens):
            pieces += self._plain(text[start : mention.start], start)
            tokens = self._tokens[mention.name] if mention.is_known else ()
            pieces += [Piece(token, mention.start) for token in tokens]
            start = mention.stop
        return pieces + self._plain(text[start:], start)

    def _plain(self, text: str, offset: int) -> list[Piece]:
        (pieces,) = self._inner.pieces([text])
        return [Piece(id, offset + start) for id, start in pieces]

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Return ids and masks, padded or truncated to one length."""
        length, (before, after) = max_length or self.max_length, self.markers
        ids = np.full((len(texts), length), self.padding, np.int32)
        mask = np.zeros(ids.shape, bool)
        room = length - len(before) - len(after)
        for row, pieces in enumerate(self.pieces(texts)):
            marked = [*before, *(piece.id for piece in pieces[:room]), *after]
            ids[row, : len(marked)], mask[row, : len(marked)] = marked, True
        return Tokens(ids, mask)

    def unread(self, text: str, max_length: int | None = None) -> str:
        """Return the end of a text that `encode` drops, from the beginning of its first word."""
        room = (max_length or self.max_length) - sum(map(len, self.markers))
        rest = self._pieces(text)[room:]
        return from_word(text, rest[0].start) if rest else ""


def token_vectors(
    ids: Int[np.ndarray, "*tokens"], vectors: Float32[np.ndarray, "all hidden"]
) -> Float32[np.ndarray, "*tokens hidden"] | None:
    """Return the embeddings' vectors for negative tokens, 0 elsewhere; None: no such tokens.

    Args:
        vectors: of all embeddings, in the tokenizer's order.
    """
    is_vector = ids < 0
    if not is_vector.any():
        return None
    result = np.zeros((*ids.shape, vectors.shape[1]), np.float32)
    result[is_vector] = vectors[-1 - ids[is_vector]]
    return result


class EncoderVectors(NamedTuple):
    """Textual inversion embeddings of a request for one text encoder."""

    counts: Mapping[str, int]
    """Number of vectors by embedding, in order."""
    vectors: Float32[np.ndarray, "all hidden"]

    def tokenizer(self, plain: Tokenizer) -> Tokenizer:
        """Return the encoder's tokenizer for prompts that name embeddings."""
        return EmbeddingTokenizer(plain, self.counts)


def encoder_vectors(
    embeddings: Sequence[RequestedLora], files: Mapping[str, bytes], encoder: str, hidden: int
) -> EncoderVectors:
    """Return the vectors of a request's textual inversion embeddings for one encoder.

    Args:
        files: of the request by path, float32 [vectors, hidden] for embeddings.
        encoder: name of the encoder in the pipeline's weights.
    """
    arrays = {
        entry.name: np.frombuffer(files.get(path_of(entry.name, encoder), b""), "<f4")
        for entry in embeddings
    }
    by_name = {name: array.reshape(-1, hidden) for name, array in arrays.items()}
    return EncoderVectors(
        {name: len(array) for name, array in by_name.items()},
        np.concatenate([np.zeros((0, hidden), np.float32), *by_name.values()]),
    )


def with_vectors(
    read: ReadTexts, encoders: Sequence[EncoderVectors], inputs: Iterable[tuple[str, str]]
) -> ReadTexts:
    """Add the vectors of embeddings' negative tokens to the text encoders' inputs.

    Args:
        inputs: names of the ids and the vectors of each encoder.
    """
    added = {}
    for encoder, (ids, name) in zip(encoders, inputs, strict=False):
        vectors = token_vectors(read.inputs[ids], encoder.vectors)
        if vectors is not None:
            added[name] = vectors
    return read._replace(inputs={**read.inputs, **added})
