"""Suggestions for names that are not known: what another API calls it, or the nearest spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

MAX_CHARS = 40
"""Longest name that is compared; a hostile request may have any, and comparing costs its length."""
LIKENESS = 0.7
"""Lowest ratio of difflib's that counts as a misspelling: `strenght` is one, `style` is none."""

_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]")


def did_you_mean(
    name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None
) -> str | None:
    """Return what was probably meant by an unknown name; None where nothing is near.

    Args:
        aliases: what other APIs call it, in snake case, and what to use here in its place.
    """
    if len(name) > MAX_CHARS:
        return None
    plain, known = _snake(name), tuple(known)
    if aliases and plain in aliases:
        return aliases[plain]
    near = get_close_matches(plain, known, n=1, cutoff=LIKENESS)
    return near[0] if near else None


def _snake(name: str) -> str:
    """Return the name in snake case: `negativePrompt` and `negative-prompt` alike."""
    return _CASE.sub("_", name).lower()
