"""Byte ranges and entity tags. Source: RFC 9110, sections 13.1.2 and 14."""

from __future__ import annotations

import re

from service.errors.problems import RangeNotSatisfiable

_ONE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)
_MAX_DIGITS = 18


def parse(header: str | None, size: int) -> tuple[int, int] | None:
    """The part that is wanted, start to end without end; None: the whole.

    Several ranges, or one in other units, are answered with the whole, as the source allows.

    Raises: RangeNotSatisfiable: it begins behind the end.
    """
    found = _ONE.fullmatch((header or "").replace(" ", ""))
    if not found or found[1] == found[2] == "" or max(map(len, found.groups())) > _MAX_DIGITS:
        return None
    start, end = _bounds(found[1], found[2], size)
    if found[1] and found[2] and int(found[1]) > int(found[2]):
        return None
    if start >= min(end, size):
        raise RangeNotSatisfiable(
            f"the output has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, min(end, size)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size
    return int(first), int(last) + 1 if last else size


def is_known(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client holds that version already."""
    tags = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return etag in tags or "*" in tags
