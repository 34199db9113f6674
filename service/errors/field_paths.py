"""Paths of wrong fields in problems, such as `output.inline`."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAME_CHARS = 80
UNION_TAG = "\0"
"""Prefix of a schema's union tags, which are not part of a path."""


def path_of(location: Sequence[str | int]) -> str:
    """Convert Pydantic's location of an error to a dotted path."""
    parts = [str(part) for part in location]
    names = [part[:MAX_NAME_CHARS] for part in parts if not part.startswith(UNION_TAG)]
    return ".".join(names) or "body"
