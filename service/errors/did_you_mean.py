"""Suggestions for unknown names: a known alias, or the closest spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

MAX_CHARS = 40
"""Maximum length of a compared name, since the cost of a comparison grows with the length."""
LIKENESS = 0.7
"""Minimum difflib ratio of a misspelling: `strenght` reaches it, `style` does not."""

_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]")


def did_you_mean(
    name: str, names: Iterable[str], aliases: Mapping[str, str] | None = None
) -> str | None:
    """Return the name that an unknown name probably means; None if no name is similar.

    Args:
        aliases: names of other APIs in snake case, with the names to use here.
    """
    if len(name) > MAX_CHARS:
        return None
    snake, names = _snake(name), tuple(names)
    if aliases and snake in aliases:
        return aliases[snake]
    matches = get_close_matches(snake, names, n=1, cutoff=LIKENESS)
    return matches[0] if matches else None


def _snake(name: str) -> str:
    """Convert `negativePrompt` or `negative-prompt` to snake case."""
    return _CASE.sub("_", name).lower()
