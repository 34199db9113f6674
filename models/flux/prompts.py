"""Tokenization of Flux prompts: CLIP for the pooled text, and T5."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.flux.request import FluxRequest
from models.spec.prompt_syntax import PromptSyntax
from models.text.embeddings import encoder_vectors, with_vectors
from models.text.tokenizer import ReadTexts, Tokenizer, cut_prompts
from models.text.weighted import read_lines

Tokenizers = tuple[Tokenizer, Tokenizer]
IDS, VECTORS = ("clip_ids", "t5_ids"), ("clip_vectors", "t5_vectors")
"""Names of the encoders' inputs: CLIP's, then T5's."""


def read_texts(
    request: FluxRequest,
    tokenizers: Tokenizers,
    clip_tokens: int,
    files: Mapping[str, bytes],
    hidden_sizes: Mapping[str, int],
) -> ReadTexts:
    """Tokenize all prompts, with the vectors of the embeddings that they name.

    Inputs are `clip_ids`, `t5_ids`; of weighted prompts, T5's `token_weights`; of prompts with
    embeddings, `clip_vectors` and `t5_vectors`.

    Args:
        clip_tokens: length of CLIP's input, markers included.
        files: of the request by path.
        hidden_sizes: of both encoders, in order.

    Raises: RequestError: weights out of range; names the field.
    """
    encoders = [
        encoder_vectors(request.embeddings, files, name, hidden)
        for name, hidden in hidden_sizes.items()
    ]
    clip, t5 = tokenizers
    if request.names_embeddings:
        clip, t5 = encoders[0].tokenizer(clip), encoders[1].tokenizer(t5)
    read = _READERS[request.prompt_syntax](request, (clip, t5), clip_tokens)
    return with_vectors(read, encoders, zip(IDS, VECTORS, strict=True))


def _plain(request: FluxRequest, tokenizers: Tokenizers, clip_tokens: int) -> ReadTexts:
    clip, t5 = tokenizers
    first, second, length = request.prompts, request.prompts_2, request.max_sequence_length
    return ReadTexts(
        {
            "clip_ids": clip.encode([*first.values()], clip_tokens),
            "t5_ids": t5.encode([*second.values()], length),
        },
        (
            *cut_prompts("CLIP", clip, first, clip_tokens),
            *cut_prompts("T5", t5, second, length),
        ),
    )


def _weighted(request: FluxRequest, tokenizers: Tokenizers, clip_tokens: int) -> ReadTexts:
    """Tokenize prompts with weights, which apply to T5 only: pooled text has no weights."""
    clip, t5 = tokenizers
    first = read_lines("CLIP", clip, request.prompts, clip_tokens)
    second = read_lines("T5", t5, request.prompts_2, request.max_sequence_length)
    return ReadTexts(
        {"clip_ids": first.ids, "t5_ids": second.ids, **second.weight_inputs},
        tuple(dict.fromkeys(first.warnings + second.warnings)),
    )


_READERS: Mapping[PromptSyntax, Callable[[FluxRequest, Tokenizers, int], ReadTexts]] = {
    "plain": _plain,
    "weighted": _weighted,
}
