"""Image files that cost their reader far more than their sender."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image


def jpeg_of_scans(scans: int, size: tuple[int, int]) -> bytes:
    """A progressive JPEG whose last scan is repeated: some bytes, and a pass over all blocks."""
    file = io.BytesIO()
    Image.new("RGB", size, "teal").save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (scans - data.count(b"\xff\xda")) + data[-2:]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that claims side x side pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + body + png_chunk(b"IEND", b"")


def within(png: bytes, *chunks: bytes) -> bytes:
    """A PNG with further chunks behind its header."""
    return png[:33] + b"".join(chunks) + png[33:]


def text_bombs() -> dict[str, bytes]:
    """Chunks of a PNG that unpack to 100 MB each."""
    packed = zlib.compress(b"\0" * 100_000_000)
    return {
        "zTXt": png_chunk(b"zTXt", b"comment\0\0" + packed),
        "iTXt": png_chunk(b"iTXt", b"comment\0\1\0\0\0" + packed),
        "iCCP": png_chunk(b"iCCP", b"profile\0\0" + packed),
    }


def animation(kind: str, frames: int) -> bytes:
    """Small frames of two colours by turns."""
    images = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")] * (frames // 2)
    file = io.BytesIO()
    images[0].save(file, kind, save_all=True, append_images=images[1:])
    return file.getvalue()
