"""Image encoder, and small images of videos. Equal pixels give equal bytes, without metadata."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

CONTENT_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}
QUALITY = 90
"""Default quality of JPEG and WebP."""
LOSSLESS = 100
"""Quality at which WebP is lossless."""
PNG_LEVEL = 1
"""zlib level: level 6 takes about five times as long for files a tenth smaller."""
THUMBNAIL_PX, TILE_PX = 512, 192
"""Longest sides of a video's thumbnail, and of a frame of its sprite sheet."""
COLUMNS, ROWS = 4, 4
"""Maximum columns and rows of a sheet."""
SHEET_FORMAT, SHEET_QUALITY = "webp", 80


def encode(pixels: np.ndarray, format: str, quality: int | None = None) -> bytes:
    """Encode uint8 [height, width, 3] as a file; as PNG or WebP also [height, width, 4].

    Args:
        format: one of CONTENT_TYPES.
        quality: 1 to 100; ignored for PNG, which is lossless.

    Raises: ValueError: another format.
    """
    image = Image.fromarray(pixels)
    quality = quality or QUALITY
    options = {
        "png": {"compress_level": PNG_LEVEL},
        "jpeg": {"quality": quality},
        "webp": {
            "quality": quality,
            "lossless": quality == LOSSLESS,
            "exact": quality == LOSSLESS,  # colours of transparent pixels too
            "method": 0,
        },
    }
    if format not in options:
        raise ValueError(f"{format!r} is not an image format; choose from {', '.join(options)}")
    file = io.BytesIO()
    image.save(file, format, **options[format])
    return file.getvalue()


def decode(data: bytes) -> np.ndarray:
    """Return the pixels of a file that `encode` has made: uint8 [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def data_uri(data: bytes, content_type: str) -> str:
    """Encode bytes as a data URI."""
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"


def sheets_of(frames: np.ndarray) -> dict[str, bytes]:
    """Return a video's thumbnail, of its first frame, and a sprite sheet of all of it, by name.

    Args:
        frames: uint8 [frames, height, width, 3].
    """
    return {
        "thumbnail": encode(_small(frames[0], THUMBNAIL_PX), SHEET_FORMAT, SHEET_QUALITY),
        "spritesheet": encode(_sheet(frames), SHEET_FORMAT, SHEET_QUALITY),
    }


def _small(frame: np.ndarray, side_px: int) -> np.ndarray:
    """Return a video frame, shrunk so that its longest side is at most `side_px`."""
    small = Image.fromarray(frame)
    small.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    return np.asarray(small)


def _sheet(frames: np.ndarray) -> np.ndarray:
    """Return the sprite sheet of a video: evenly spaced frames, row by row, padded with black."""
    count = min(len(frames), COLUMNS * ROWS)
    chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
    tiles = [_small(frames[number], TILE_PX) for number in chosen]
    columns = min(count, COLUMNS)
    tiles += [np.zeros_like(tiles[0])] * (-count % columns)
    rows = [np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
    return np.vstack(rows)
