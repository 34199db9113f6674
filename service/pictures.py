"""Pictures that come with a request: taken apart, checked, and made into one plain kind of file.

What the pools get is always an RGB PNG that has been decoded once already, turned upright and
without alpha, as diffusers' `load_image` would have it; so no strange file ever reaches a pool.
"""

from __future__ import annotations

import base64
import binascii
import io
from urllib.parse import unquote_to_bytes

from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP")
PNG_LEVEL = 1
"""Of zlib's ten: the file lives for minutes, the encoder's time is what counts."""

_WHITESPACE = b" \t\r\n"


class PictureError(ValueError):
    """The picture cannot be used; the message says why."""


def is_url(value: str) -> bool:
    return value[:8].lower().startswith(("http://", "https://"))


def from_base64(value: str) -> bytes:
    """The bytes of a data URI or of bare base64; line breaks and the URL-safe letters are fine.

    Raises: PictureError.
    """
    try:
        text = value.encode("ascii")
    except UnicodeEncodeError:
        raise PictureError("is neither a data URI nor base64") from None
    if text[:5].lower() == b"data:":
        text = _payload(text)
    text = text.translate(bytes.maketrans(b"-_", b"+/"), _WHITESPACE)
    if len(text) % 4:
        raise PictureError(
            "is no whole base64: its length must be a multiple of 4, with = at the end"
        )
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise PictureError(f"is neither a data URI nor base64: {error}") from None
    if not data:
        raise PictureError("is empty")
    return data


def _payload(uri: bytes) -> bytes:
    head, comma, payload = uri.partition(b",")
    if not comma or not head.lower().rstrip().endswith(b";base64"):
        raise PictureError("is a data URI without ;base64, before its comma")
    return unquote_to_bytes(payload)


def normalize(data: bytes, max_pixels: int) -> bytes:
    """A PNG, JPEG or WebP file → the same picture as an upright RGB PNG.

    Its size is read, and held against `max_pixels`, before a single pixel is decoded.

    Raises: PictureError.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            _check(picture, max_pixels)
            upright = ImageOps.exif_transpose(picture).convert("RGB")
    except PictureError:
        raise
    except Image.UnidentifiedImageError:
        raise PictureError("is no PNG, JPEG or WebP") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise PictureError(f"has more than {max_pixels} pixels") from None
    except Exception as error:  # the decoders raise what they like on a hostile file
        raise PictureError(f"is broken and cannot be decoded ({type(error).__name__})") from error
    file = io.BytesIO()
    upright.save(file, "PNG", compress_level=PNG_LEVEL)
    return file.getvalue()


def size(file: bytes) -> tuple[int, int]:
    """Width and height of a picture that `normalize` gave."""
    with Image.open(io.BytesIO(file)) as picture:
        return picture.size


def _check(picture: Image.Image, max_pixels: int) -> None:
    width, height = picture.size
    if width * height > max_pixels:
        raise PictureError(f"has {width} x {height} pixels; {max_pixels} are allowed")
    if getattr(picture, "is_animated", False) and picture.format != "MPO":
        raise PictureError("is animated; send one still picture")
