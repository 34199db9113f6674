"""Image encoder. Equal pixels give equal bytes; metadata is added later."""

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


def encode(pixels: np.ndarray, format: str, quality: int | None = None) -> bytes:
    """Encode uint8 [height, width, 3] as a file.

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
        "webp": {"quality": quality, "lossless": quality == LOSSLESS, "method": 0},
    }
    if format not in options:
        raise ValueError(f"{format!r} is no image format; choose from {', '.join(options)}")
    file = io.BytesIO()
    image.save(file, format, **options[format])
    return file.getvalue()


def data_uri(data: bytes, content_type: str) -> str:
    """Return bytes as a data URI."""
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"
