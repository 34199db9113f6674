"""Prompts of Wan: text cleaning, and UMT5 features with zeros at padding."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

import ftfy
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.spec.prompt_syntax import PromptSyntax
from models.text.emphasis import scaled
from models.text.tokenizer import ReadTexts, Tokenizer, cut_prompts
from models.text.umt5 import UMT5Encoder
from models.text.weighted import read_lines
from models.wan.request import WanRequest


def clean(prompt: str) -> str:
    """Clean a prompt as diffusers does: repair Unicode, unescape HTML, collapse whitespace.

    HTML is unescaped twice, since some texts are escaped twice. Source: diffusers pipeline_wan.py,
    prompt_clean.
    """
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return re.sub(r"\s+", " ", text.strip()).strip()


def read_texts(request: WanRequest, tokenizer: Tokenizer) -> ReadTexts:
    """Tokenize all prompts: `text_ids`, `text_mask`, and `token_weights` of weighted prompts.

    Raises: RequestError: weights out of range; names the field.
    """
    texts = {field: clean(prompt) for field, prompt in request.prompts.items()}
    return _READERS[request.prompt_syntax](texts, tokenizer, request.max_sequence_length)


def _plain(texts: Mapping[str, str], tokenizer: Tokenizer, length: int) -> ReadTexts:
    ids, mask = tokenizer.encode_with_mask([*texts.values()], length)
    cut = cut_prompts("UMT5", tokenizer, texts, length)
    return ReadTexts({"text_ids": ids, "text_mask": mask}, cut)


def _weighted(texts: Mapping[str, str], tokenizer: Tokenizer, length: int) -> ReadTexts:
    lines = read_lines("UMT5", tokenizer, texts, length)
    inputs = {"text_ids": lines.ids, "text_mask": lines.mask, **lines.weight_inputs}
    return ReadTexts(inputs, lines.warnings)


_READERS: Mapping[PromptSyntax, Callable[[Mapping[str, str], Tokenizer, int], ReadTexts]] = {
    "plain": _plain,
    "weighted": _weighted,
}


def prompt_embeds(
    encoder: UMT5Encoder,
    tokens: Int[Array, "batch tokens"],
    mask: Bool[Array, "batch tokens"],
    weights: Float[Array, "batch tokens"] | None = None,
) -> Float[Array, "batch tokens d_model"]:
    """Return the text features, zero after each prompt's last token; there is no attention mask.

    Source: diffusers pipeline_wan.py, _get_t5_prompt_embeds.
    """
    features = scaled(encoder(tokens, mask), weights)
    length = mask.sum(axis=1, keepdims=True)
    is_text = jnp.arange(tokens.shape[1]) < length
    return jnp.where(is_text[:, :, None], features, 0)
