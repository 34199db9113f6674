"""Image files of clients: which ones are read, and the pixels in them.

Front ends check a file by the very function that pools decode it with, so that no pool meets a file
that could not be decoded. Nothing here needs JAX.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from PIL import Image, ImageOps, TiffImagePlugin, WebPImagePlugin

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
"""Formats that are read, by Pillow's name, and their media types."""
MAX_SCANS = 32
"""Scans of a JPEG. Encoders write about ten of a progressive one; each costs a pass over all its
blocks, though it may have a few bytes only."""

LEVELS_OF_16_BITS = 257
"""Levels of 16 bits in one of 8: white is 65535 or 255."""
LAZY = (TiffImagePlugin, WebPImagePlugin)
"""Parts of Pillow that it would import when a file wants them; EXIF is read as TIFF."""

_SOS, _EOI = 0xDA, 0xD9
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length: stuffed bytes, TEM, restarts and the start of the image."""


class ImageFileError(ValueError):
    """The file cannot be used; the message says why."""


@dataclass(frozen=True)
class ImageFile:
    """A file that can be decoded."""

    media_type: str
    width: int
    """Width as it is seen: upright."""
    height: int
    frames: int = 1
    """Number of its frames: of a video."""
    decode_s: float = field(default=0.0, compare=False)
    """Processor time that decoding it took."""


def decode(data: bytes, is_mask: bool = False) -> Image.Image:
    """Pixels of a file: upright, in RGB, as diffusers' `load_image` has them where all is opaque.

    Transparent pixels are composited on white, since their own colours are never shown. Those of a
    mask keep their own. Grey levels of 16 bits, which `load_image` cuts off at 255, are scaled.
    """
    with Image.open(io.BytesIO(data), formats=tuple(FORMATS)) as image:
        ImageOps.exif_transpose(image, in_place=True)
        if image.has_transparency_data and not is_mask:
            return on_white(image)
        return _in_8_bits(image).convert("RGB")


def on_white(image: Image.Image) -> Image.Image:
    """Return an image in RGB, composited on white where it is transparent."""
    colours = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, colours).convert("RGB")


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Return an image whose grey levels are of 8 bits."""
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda level: level / LEVELS_OF_16_BITS).convert("L")


def check(data: bytes, max_pixels: int) -> ImageFile:
    """Check a file by decoding it; its scans, size and frames before a single pixel.

    Raises: ImageFileError.
    """
    with explained(max_pixels):
        media_type = _check_header(data, max_pixels)
        width, height = decode(data).size
    return ImageFile(media_type, width, height)


def load(data: bytes, max_pixels: int) -> Image.Image:
    """Return a file's pixels: upright, in RGB, or in RGBA where it has an alpha channel.

    Raises: ImageFileError.
    """
    with explained(max_pixels):
        _check_header(data, max_pixels)
        with Image.open(io.BytesIO(data), formats=tuple(FORMATS)) as image:
            ImageOps.exif_transpose(image, in_place=True)
            mode = "RGBA" if image.has_transparency_data else "RGB"
            return _in_8_bits(image).convert(mode)


def mask_of_alpha(data: bytes, max_pixels: int) -> bytes:
    """Return a mask as a PNG: white where the file is transparent, black where it is opaque.

    Raises: ImageFileError: also where it has no alpha channel.
    """
    with explained(max_pixels):
        _check_header(data, max_pixels)
        with Image.open(io.BytesIO(data), formats=tuple(FORMATS)) as image:
            ImageOps.exif_transpose(image, in_place=True)
            if not image.has_transparency_data:
                raise ImageFileError(
                    "has no alpha channel; make it transparent where the image is to be redrawn"
                )
            mask = ImageOps.invert(image.convert("RGBA").getchannel("A"))
    file = io.BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()


@contextmanager
def explained(max_pixels: int) -> Iterator[None]:
    """Raises: ImageFileError: in place of what decoders raise."""
    try:
        yield
    except ImageFileError:
        raise
    except Image.UnidentifiedImageError:
        raise ImageFileError("is no PNG, JPEG or WebP") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageFileError(f"has more than {max_pixels} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise what they like on a hostile file
        raise ImageFileError(f"is broken and cannot be decoded ({type(error).__name__})") from error


def _check_header(data: bytes, max_pixels: int) -> str:
    """The media type. Raises: ImageFileError."""
    if count_scans(data) > MAX_SCANS:
        raise ImageFileError(f"is a JPEG of more than {MAX_SCANS} scans; save it again as baseline")
    with Image.open(io.BytesIO(data), formats=tuple(FORMATS)) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise ImageFileError(f"has {width} x {height} pixels; {max_pixels} are allowed")
        is_still = image.format == "MPO" or not getattr(image, "is_animated", False)
        if not is_still:
            raise ImageFileError("is animated; send one still image")
        return FORMATS.get(image.format or "", FORMATS["JPEG"])


def count_scans(data: bytes) -> int:
    """Number of scans of a JPEG, up to its end or a few more than `MAX_SCANS`; 0 of other files.

    Source: ITU-T T.81, B.1.1 (markers, and lengths of their segments).
    """
    scans, at = 0, 2
    while data.startswith(b"\xff\xd8") and scans <= MAX_SCANS:
        at = data.find(b"\xff", at)
        marker = data[at + 1] if 0 <= at < len(data) - 1 else _EOI
        if marker == _EOI:
            break
        scans += marker == _SOS
        has_length = marker not in _STANDALONE and marker != 0xFF
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big") if has_length else 1
    return scans
