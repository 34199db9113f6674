"""Embeddings (textual inversion) that a prompt names. No JAX: front ends import this module.

A prompt contains an embedding's name as a word, as in AUTOMATIC1111, or `embedding:NAME`, as in
ComfyUI.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

PROMPTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")
"""Request fields that may name embeddings."""
PATH = "embeddings"
"""First part of the path of an embedding's vectors among a request's files."""
INTRODUCTION = "embedding:"
"""Beginning of an embedding's name in ComfyUI."""

_ENDING = r"(?:\.(?:safetensors|sft|pt|bin))?"
_UNKNOWN = r"(?<!\w)embedding:(?P<unknown>[^\s,:;|()\[\]{}<>]{1,200})"


def path_of(name: str, encoder: str) -> str:
    """Return the path of an embedding's vectors for an encoder among a request's files."""
    return f"{PATH}.{encoder}.{name}"


class Mention(NamedTuple):
    """Part of a prompt that names an embedding."""

    start: int
    """Offset of its first character."""
    stop: int
    name: str
    """Name of the embedding, or what follows `embedding:`."""
    is_known: bool


def mentions(text: str, names: Collection[str]) -> Iterator[Mention]:
    """Yield the mentions of embeddings in a prompt, from left to right, regardless of case.

    Args:
        names: names of the embeddings that the request may use.
    """
    by_name = {name.lower(): name for name in names}
    for match in _pattern(names).finditer(text):
        unknown = match["unknown"]
        word = match["prefixed"] or match["bare"] if names else None
        name = unknown if word is None else by_name[word.lower()]
        yield Mention(match.start(), match.end(), str(name), word is not None)


def _pattern(names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of the names, the longest first."""
    if not names:
        return re.compile(_UNKNOWN, re.IGNORECASE)
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    prefixed = rf"(?<!\w)embedding:(?P<prefixed>{longest_first}){_ENDING}(?!\w)"
    bare = rf"(?<!\w)(?P<bare>{longest_first})(?!\w)"
    return re.compile(f"{prefixed}|{_UNKNOWN}|{bare}", re.IGNORECASE)
