"""Embeddings (textual inversion) that a prompt names. No JAX: front ends import this module.

A prompt contains an embedding's name as a word, as in AUTOMATIC1111, or `embedding:NAME`, as in
ComfyUI.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

PROMPTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")
"""Request fields that may name embeddings."""
PATH = "embeddings"
"""First part of the path of an embedding's vectors among a request's files."""
INTRODUCTION = "embedding:"
"""Beginning of an embedding's name in ComfyUI."""

_ENDING = re.compile(r"\.(?:safetensors|sft|pt|bin)")
_CONTINUATION = re.compile(r"[\w+&'-]")
"""Character that may continue a name after `embedding:`."""
_UNKNOWN = re.compile(r"[^\s,:;|()\[\]{}<>]{1,200}")
_WORD = re.compile(r"\w")


def path_of(name: str, encoder: str) -> str:
    """Return the path of an embedding's vectors for an encoder among a request's files."""
    return f"{PATH}.{encoder}.{name}"


class Mention(NamedTuple):
    """Part of a prompt that names a textual inversion embedding."""

    start: int
    """Offset of its first character."""
    stop: int
    name: str
    """Name of the embedding, or what follows `embedding:`."""
    is_known: bool


def mentions(text: str, names: Iterable[str]) -> tuple[Mention, ...]:
    """List the mentions of embeddings in a prompt, from left to right, regardless of case.

    Args:
        names: names of the embeddings that the request may use.
    """
    return _mentions(text, tuple(names))


@lru_cache(maxsize=8)  # a request's prompts are searched several times
def _mentions(text: str, names: Sequence[str]) -> tuple[Mention, ...]:
    return tuple(_search(text, names))


def _search(text: str, names: Iterable[str]) -> Iterator[Mention]:
    lowered = _lowered(text)
    by_name = {_lowered(name): name for name in names if _lowered(name) in lowered}
    if not by_name and INTRODUCTION not in lowered:
        return
    prompt = _Prompt(text, lowered, by_name)
    position = 0
    while position < len(text):
        mention = prompt.mention_at(position)
        if mention is not None:
            yield mention
        position = position + 1 if mention is None else mention.stop


def _lowered(text: str) -> str:
    """Convert a prompt to lower case without changing its length, so that positions stay valid."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


class _Prompt:
    """Prompt that is searched for names of embeddings.

    Args:
        lowered: the text in lower case, of the same length.
        by_name: names by their lower case.
    """

    def __init__(self, text: str, lowered: str, by_name: Mapping[str, str]) -> None:
        self._text, self._lowered, self._by_name = text, lowered, by_name
        self._sorted = sorted(by_name)
        self._longest = max(map(len, by_name), default=0)
        self._prefixes = dict(_longest_prefixes(self._sorted))

    def mention_at(self, position: int) -> Mention | None:
        """Return the mention of an embedding that begins at a position, if any."""
        if position and _WORD.match(self._text, position - 1):
            return None
        if self._lowered.startswith(INTRODUCTION, position):
            return self._introduced(position, position + len(INTRODUCTION))
        for name, stop in self._names_at(position):
            if not _WORD.match(self._text, stop):
                return Mention(position, stop, name, is_known=True)
        return None

    def _introduced(self, position: int, start: int) -> Mention | None:
        """Return the mention after `embedding:`, whose name may have a file extension."""
        for name, stop in self._names_at(start):
            ending = _ENDING.match(self._lowered, stop)
            for end in (ending.end() if ending else stop, stop):
                if not _CONTINUATION.match(self._text, end):
                    return Mention(position, end, name, is_known=True)
        unknown = _UNKNOWN.match(self._text, start)
        return unknown and Mention(position, unknown.end(), unknown[0], is_known=False)

    def _names_at(self, start: int) -> Iterator[tuple[str, int]]:
        """Yield the embedding names at a position and their ends, the longest first.

        Names that begin here sort before the text that follows, as do names that begin with them.
        """
        following = self._lowered[start : start + self._longest]
        before = bisect_right(self._sorted, following)
        name = self._sorted[before - 1] if before else None
        while name:
            if following.startswith(name):
                yield self._by_name[name], start + len(name)
            name = self._prefixes[name]


def _longest_prefixes(names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each of the sorted embedding names, and the longest other name that it begins with."""
    prefixes: list[str] = []
    for name in names:
        while prefixes and not name.startswith(prefixes[-1]):
            prefixes.pop()
        yield name, prefixes[-1] if prefixes else None
        prefixes.append(name)
