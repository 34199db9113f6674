"""Image and video files that are much more expensive to read than to send."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import cache

import av
import numpy as np
from PIL import Image


def jpeg_of_scans(scans: int, size: tuple[int, int]) -> bytes:
    """A progressive JPEG whose last scan repeats: few bytes, each scan a pass over all blocks."""
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
    """Insert chunks after a PNG's header."""
    return png[:33] + b"".join(chunks) + png[33:]


def broken_tags(count: int) -> bytes:
    """A JPEG whose EXIF tags claim more data than it has; Pillow warns of each."""
    tags = (struct.pack("<HHII", 0x9000 + number, 2, 2**31, 0) for number in range(count))
    directory = struct.pack("<H", count) + b"".join(tags) + bytes(4)
    file = io.BytesIO()
    exif = b"Exif\0\0II*\0" + struct.pack("<I", 8) + directory
    Image.new("RGB", (8, 8), "teal").save(file, "JPEG", exif=exif)
    return file.getvalue()


TEXT_BOMBS = {
    "zTXt": b"comment\0\0",
    "iTXt": b"comment\0\1\0\0\0",
    "iCCP": b"profile\0\0",
}
"""PNG chunks with possibly compressed content, and the bytes before it."""


def text_bomb(kind: str) -> bytes:
    """A chunk of a PNG that unpacks to 100 MB."""
    return png_chunk(kind.encode(), TEXT_BOMBS[kind] + _packed())


@cache
def _packed() -> bytes:
    return zlib.compress(b"\0" * 100_000_000)


def animation(kind: str, frames: int) -> bytes:
    """Make an animation of small frames in two alternating colors."""
    images = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")] * (frames // 2)
    file = io.BytesIO()
    images[0].save(file, kind, save_all=True, append_images=images[1:])
    return file.getvalue()


def video(
    frames: int,
    size: tuple[int, int] = (32, 32),
    codec: str = "libx264",
    container: str = "mp4",
    **options: str,
) -> bytes:
    """Make a single-color video, which has few bytes at any length and size.

    Args:
        options: options of the codec.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=16)
        stream.width, stream.height = size
        stream.options = options
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        frame = av.VideoFrame.from_image(Image.new("RGB", size, "teal"))
        for number in range(frames):
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return file.getvalue()


def transparent_video(codec: str = "libvpx-vp9", frames: int = 2) -> bytes:
    """Make a red WebM of 64 x 48 pixels whose lower half is transparent."""
    pixels = np.zeros((48, 64, 4), np.uint8)
    pixels[..., 0], pixels[:24, :, 3] = 200, 255
    file = io.BytesIO()
    with av.open(file, "w", format="webm") as output:
        stream = output.add_stream(codec, rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuva420p"
        stream.options = {"auto-alt-ref": "0"}
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgba").reformat(format="yuva420p")
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return file.getvalue()


def _mp4() -> bytes:
    return video(5)


HOSTILE_VIDEOS: Mapping[str, Callable[[], bytes]] = {
    "playlist": lambda: b"#EXTM3U\n#EXTINF:1\nfile:///etc/passwd\n",
    "concat": lambda: b"ffconcat version 1.0\nfile /etc/passwd\n",
    "nothing behind the head": lambda: _mp4()[:32],
    "cut": lambda: _mp4()[: len(_mp4()) * 2 // 3],
    "cut WebM": lambda: video(5, codec="libvpx", container="webm")[:200],
    "noise": lambda: _mp4()[:4] + b"ftyp" + bytes(range(256)) * 400,
    "noise as WebM": lambda: b"\x1a\x45\xdf\xa3" + bytes(range(256)) * 400,
    "boxes in boxes": lambda: b"\0\0\0\x08ftyp" + (b"\0\0\0\0moov" * 20_000),
    "turned bits": lambda: _mp4()[:-400] + bytes(255 - byte for byte in _mp4()[-400:]),
    "no video in it": lambda: _sound(),
    "far larger than it says": lambda: larger_than_it_says(2048, 1024),
    "another codec": lambda: video(2, codec="mjpeg", container="mov"),
}
"""Files that claim to be videos but must not be decoded; each is made on use."""


def larger_than_it_says(width: int, height: int) -> bytes:
    """Make a WebM with that many pixels per frame whose header claims 16 x 16."""
    data = video(2, (width, height), "libvpx", "webm")
    for element, side in ((b"\xb0", width), (b"\xba", height)):
        length = 1 if side < 256 else 2
        head = element + bytes([0x80 + length])
        assert head + side.to_bytes(length) in data
        data = data.replace(head + side.to_bytes(length), head + (16).to_bytes(length), 1)
    return data


def _sound() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as written:
        stream = written.add_stream("aac", rate=48_000, layout="mono")
        silence = np.zeros((1, 1024), np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 48_000, 0
        written.mux(stream.encode(frame))
        written.mux(stream.encode())
    return file.getvalue()
