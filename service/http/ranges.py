"""Byte ranges and entity tags. Source: RFC 9110, sections 13.1.2 and 14."""

from __future__ import annotations

import re

from service.errors.problems import RangeNotSatisfiable

_ONE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)
_MAX_DIGITS = 18


def parse(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a Range header: start and exclusive end; None: the whole file.

    Several ranges, or other units, yield the whole, as the source allows.

    Raises: RangeNotSatisfiable: the range starts after the end.
    """
    match = _ONE.fullmatch((header or "").replace(" ", ""))
    if not match or match[1] == match[2] == "" or max(map(len, match.groups())) > _MAX_DIGITS:
        return None
    start, end = _bounds(match[1], match[2], size)
    if match[1] and match[2] and int(match[1]) > int(match[2]):
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


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether the client's If-None-Match contains this ETag."""
    tags = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return etag in tags or "*" in tags
