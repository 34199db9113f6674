"""Embeddings (textual inversion) that a prompt names. No JAX: front ends import this module.

A prompt contains an embedding's name as a word, as in AUTOMATIC1111, or `embedding:NAME`, as in
ComfyUI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PROMPTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")
"""Request fields that may name embeddings."""
PATH = "embeddings"
"""First part of the path of an embedding's vectors among a request's files."""
INTRODUCTION = "embedding:"
"""Beginning of an embedding's name in ComfyUI."""

_ENDING = r"(?:\.(?:safetensors|sft|pt|bin))?"
_NO_MORE = r"(?![\w+&'-])"
"""End of a name after `embedding:`: no character that may continue another name."""
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


def mentions(text: str, names: Iterable[str]) -> Iterator[Mention]:
    """Yield the mentions of embeddings in a prompt, from left to right, regardless of case.

    Args:
        names: names of the embeddings that the request may use.
    """
    lowered = text.lower()
    by_name = {name.lower(): name for name in names if name.lower() in lowered}
    if not by_name and INTRODUCTION not in lowered:
        return
    for match in _pattern(by_name).finditer(text):
        word = match["prefixed"] or match["bare"] or ""
        name = by_name.get(word.lower())
        if name is not None:
            yield Mention(match.start(), match.end(), name, is_known=True)
        elif not match["bare"]:  # a bare word that only `re` takes for the name is text
            yield Mention(match.start(), match.end(), match["unknown"] or word, is_known=False)


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the names, the longest first."""
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    listed = longest_first or "(?!)"  # matches nothing
    prefixed = rf"(?<!\w)embedding:(?P<prefixed>{listed}){_ENDING}{_NO_MORE}"
    bare = rf"(?<!\w)(?P<bare>{listed})(?!\w)"
    return re.compile(f"{prefixed}|{_UNKNOWN}|{bare}", re.IGNORECASE)
