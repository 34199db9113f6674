"""Image files of clients: validation and decoding, without JAX.

Front ends validate a file with the same function that workers decode it with. Workers therefore
receive only files that they can decode.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from models.media.png_chunks import without_metadata

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
"""Accepted formats, by Pillow's name, and their media types."""
MAX_SCANS = 32
"""Maximum scans of a JPEG. Encoders write about ten for a progressive JPEG. Each scan costs a pass
over all blocks, even if the scan has only a few bytes."""

LEVELS_OF_16_BITS = 257
"""Levels of 16 bits per level of 8 bits: white is 65535 or 255."""
OPAQUE = 255
"""Alpha of an opaque pixel."""
LAZY = (TiffImagePlugin, WebPImagePlugin)
"""Parts of Pillow that it imports on first use by a file; EXIF is read as TIFF."""

_SOS, _EOI = 0xDA, 0xD9
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length: stuffed bytes, TEM, restarts and the start of the image."""


class ImageFileError(ValueError):
    """Error for an unusable file; the message contains the reason."""


@dataclass(frozen=True)
class ImageFile:
    """Properties of a file that has been decoded successfully."""

    media_type: str
    width: int
    """Width of the upright image."""
    height: int
    frames: int = 1
    """Number of frames of a video."""
    is_transparent: bool = False
    """Whether an image has transparent pixels, which are composited on white."""
    decode_s: float = field(default=0.0, compare=False)
    """Processor time of decoding."""


def decode(data: bytes, is_mask: bool = False) -> Image.Image:
    """Decode a file to an upright RGB image, as diffusers' `load_image` does for opaque images.

    Transparent pixels are composited on white, since their colours are never shown. Transparent
    pixels of a mask keep their colours. Grey levels of 16 bits, which `load_image` clips at 255,
    are scaled.
    """
    with opened(data) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return in_rgb(image, is_mask)


def opened(data: bytes) -> Image.Image:
    """Open a file of the accepted formats; metadata that does not affect its pixels is skipped.

    Raises: UnidentifiedImageError; other exceptions of Pillow.
    """
    return Image.open(io.BytesIO(without_metadata(data)), formats=tuple(FORMATS))


def in_rgb(image: Image.Image, is_mask: bool = False) -> Image.Image:
    """Convert an upright image to RGB."""
    if image.has_transparency_data and not is_mask:
        return on_white(image)
    return _in_8_bits(image).convert("RGB")


def has_transparent_pixels(image: Image.Image) -> bool:
    """Return whether any pixel is transparent, at least partly."""
    if not image.has_transparency_data:
        return False
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return lowest != OPAQUE


def on_white(image: Image.Image) -> Image.Image:
    """Composite an image with transparency on white; return RGB."""
    colours = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, colours).convert("RGB")


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Convert an image with 16-bit grey levels to 8 bits."""
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda level: level / LEVELS_OF_16_BITS).convert("L")


def check(data: bytes, max_pixels: int) -> ImageFile:
    """Validate a file: its scans, size and frames first, then a full decode.

    Raises: ImageFileError.
    """
    with converting_errors(max_pixels):
        media_type = _check_header(data, max_pixels)
        with opened(data) as image:
            ImageOps.exif_transpose(image, in_place=True)
            is_transparent = has_transparent_pixels(image)
            width, height = in_rgb(image).size
    return ImageFile(media_type, width, height, is_transparent=is_transparent)


def load(data: bytes, max_pixels: int) -> Image.Image:
    """Return a file's pixels: upright, in RGB, or in RGBA if the file has an alpha channel.

    Raises: ImageFileError.
    """
    with converting_errors(max_pixels):
        _check_header(data, max_pixels)
        with opened(data) as image:
            ImageOps.exif_transpose(image, in_place=True)
            mode = "RGBA" if image.has_transparency_data else "RGB"
            return _in_8_bits(image).convert(mode)


def mask_of_alpha(data: bytes, max_pixels: int) -> bytes:
    """Return a mask as a PNG: white where the file is transparent, black where it is opaque.

    Raises: ImageFileError: the file is invalid or has no alpha channel.
    """
    with converting_errors(max_pixels):
        _check_header(data, max_pixels)
        with opened(data) as image:
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
def converting_errors(max_pixels: int) -> Iterator[None]:
    """Convert the exceptions of decoders to `ImageFileError`.

    Raises: ImageFileError.
    """
    try:
        yield
    except ImageFileError:
        raise
    except UnidentifiedImageError:
        raise ImageFileError("is not a PNG, JPEG or WebP image") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageFileError(f"has more than {max_pixels} pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on hostile files
        raise ImageFileError(f"{_fault_of(error)}; save it again, or send another file") from error


def _fault_of(error: Exception) -> str:
    """Describe a decoding error in our own words, since decoders' messages are for programmers."""
    if "truncated" in str(error):
        return "is broken and cannot be decoded: it ends before its last pixels"
    return "is broken and cannot be decoded"


def _check_header(data: bytes, max_pixels: int) -> str:
    """Validate an image file's scans, size and frame count; return the media type.

    Raises: ImageFileError.
    """
    if count_scans(data) > MAX_SCANS:
        raise ImageFileError(f"is a JPEG of more than {MAX_SCANS} scans; save it again as baseline")
    with opened(data) as image:
        width, height = image.size
        if width * height > max_pixels:
            raise ImageFileError(f"has {width} x {height} pixels; {max_pixels} are allowed")
        is_still = image.format == "MPO" or not getattr(image, "is_animated", False)
        if not is_still:
            raise ImageFileError("is animated; send one still image")
        return FORMATS.get(image.format or "", FORMATS["JPEG"])


def count_scans(data: bytes) -> int:
    """Count the scans of a JPEG, up to slightly more than `MAX_SCANS`; 0 for other files.

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
