"""Prompts as Wan reads them: cleaned text, and UMT5's features with zeros where there is none."""

from __future__ import annotations

import html
import re

import ftfy
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from models.text.umt5 import UMT5Encoder


def clean(prompt: str) -> str:
    """Return a prompt cleaned as diffusers does.

    Repaired Unicode, HTML entities as characters (twice: some texts are escaped twice), and single
    spaces. Source: diffusers pipeline_wan.py, prompt_clean.
    """
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return re.sub(r"\s+", " ", text.strip()).strip()


def prompt_embeds(
    encoder: UMT5Encoder,
    tokens: Int[Array, "batch tokens"],
    mask: Bool[Array, "batch tokens"],
) -> Float[Array, "batch tokens d_model"]:
    """Features of the tokens, zero behind each prompt's last: the transformer sees no mask.

    Source: diffusers pipeline_wan.py, _get_t5_prompt_embeds.
    """
    features = encoder(tokens, mask)
    length = mask.sum(axis=1, keepdims=True)
    is_text = jnp.arange(tokens.shape[1]) < length
    return jnp.where(is_text[:, :, None], features, 0)
