"""Paths of wrong fields, as problems name them."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAME_CHARS = 80
UNION_TAG = "\0"
"""Beginning of a tag by which a schema tells the kinds of a value apart: no part of a path."""


def path_of(location: Sequence[str | int]) -> str:
    """Return Pydantic's location of an error as a path with dots."""
    parts = [str(part) for part in location]
    names = [part[:MAX_NAME_CHARS] for part in parts if not part.startswith(UNION_TAG)]
    return ".".join(names) or "body"
