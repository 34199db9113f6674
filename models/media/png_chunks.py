"""Chunks of PNG files: removal of metadata that does not affect pixels, however large it is.

Source: PNG specification (third edition), sections 5.3 (chunk layout) and 11.3 (ancillary chunks).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_TEXT_BYTES = 2**18
"""Maximum size of a kept text, unpacked; a longer one is skipped like any other metadata."""
ORIENTATION = frozenset({b"XML:com.adobe.xmp", b"Raw profile type exif"})
"""Keywords of texts that may contain an image's orientation."""
_FRAME = 12
"""Bytes of a chunk in addition to its data: length, type and checksum."""
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_PROFILE = b"iCCP"


def without_metadata(data: bytes, kept: frozenset[bytes] = ORIENTATION) -> bytes:
    """Remove a PNG's colour profile and texts; files of other formats are returned unchanged.

    Decoders unpack them before the pixels and reject files with large ones.

    Args:
        kept: keywords of texts to keep, up to `MAX_TEXT_BYTES`.
    """
    if not data.startswith(SIGNATURE):
        return data
    removed = [(start, end) for start, end in _metadata(data) if not _keeps(data, start, end, kept)]
    if not removed:
        return data
    ends = [len(SIGNATURE), *(end for _, end in removed)]
    starts = [*(start for start, _ in removed), len(data)]
    pieces = [data[start:end] for start, end in zip(ends, starts, strict=True)]
    return b"".join([SIGNATURE, *pieces])


def has_long_text(data: bytes, keyword: bytes) -> bool:
    """Return whether a PNG has a text of this keyword that is invalid or above `MAX_TEXT_BYTES`."""
    texts = _metadata(data) if data.startswith(SIGNATURE) else ()
    return any(
        data[start + 4 : start + 8] in _TEXTS
        and data[start + 8 : end].startswith(keyword + b"\0")
        and not _keeps(data, start, end, frozenset({keyword}))
        for start, end in texts
    )


def _metadata(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each complete colour profile and text chunk of a PNG."""
    start = len(SIGNATURE)
    while start + _FRAME <= len(data):
        end = start + _FRAME + int.from_bytes(data[start : start + 4], "big")
        kind = data[start + 4 : start + 8]
        if end <= len(data) and (kind in _TEXTS or kind == _PROFILE):
            yield start, end
        start = end


def _keeps(data: bytes, start: int, end: int, kept: frozenset[bytes]) -> bool:
    """Return whether a PNG's text chunk is to be kept, and short enough."""
    kind, content = data[start + 4 : start + 8], data[start + 8 : end - 4]
    keyword, _, rest = content[: MAX_TEXT_BYTES + 1].partition(b"\0")
    if kind == _PROFILE or keyword not in kept or len(content) > MAX_TEXT_BYTES:
        return False
    is_packed = kind == b"zTXt" or (kind == b"iTXt" and rest[:1] != b"\0")
    return not is_packed or _unpacks(_packed_text(kind, rest))


def _packed_text(kind: bytes, rest: bytes) -> bytes:
    """Return the compressed part of a PNG's text chunk, after keyword, method and languages."""
    if kind == b"zTXt":
        return rest[1:]
    return rest[2:].split(b"\0", 2)[-1]


def _unpacks(packed: bytes) -> bool:
    """Return whether compressed data is valid and at most `MAX_TEXT_BYTES` long unpacked."""
    unpacking = zlib.decompressobj()
    try:
        unpacking.decompress(packed, MAX_TEXT_BYTES)
    except zlib.error:
        return False
    return not unpacking.unconsumed_tail
