"""Embeddings (textual inversion) of a request, as its files contain them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from models.sdxl.prompts import IDS, VECTORS
from models.spec.embeddings import path_of
from models.spec.lora import RequestedLora
from models.text.embeddings import EmbeddingTokenizer, token_vectors
from models.text.tokenizer import ReadTexts, Tokenizer

ENCODERS = ("clip", "clip_2")
"""Names of the text encoders in the pipeline's weights; a refiner has the second."""


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


def with_vectors(read: ReadTexts, encoders: Sequence[EncoderVectors]) -> ReadTexts:
    """Add the vectors of embeddings' negative tokens to the text encoders' inputs."""
    inputs = dict(read.inputs)
    for ids, name, encoder in zip(IDS, VECTORS, encoders, strict=False):
        vectors = token_vectors(read.inputs[ids], encoder.vectors)
        if vectors is not None:
            inputs[name] = vectors
    return read._replace(inputs=inputs)
