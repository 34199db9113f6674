"""Recipes in output files: embedding around encoded pixels, by format, and reading them back."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PIL import Image, PngImagePlugin, UnidentifiedImageError
from pydantic import ValidationError

from models.media.png_chunks import without_metadata
from service.recipes import xmp
from service.recipes.parameters import parameters_of
from service.recipes.recipe import Recipe

READ = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats from which other programs' `parameters` are read, by Pillow's name."""
EXIF_IFD, USER_COMMENT = 0x8769, 0x9286
"""EXIF's sub-directory, and its tag in which AUTOMATIC1111 writes the text."""
UNICODE = b"UNICODE\0"
SEGMENT_BYTES = 65533
"""Maximum length of a JPEG segment's content."""
XMP_UUID = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
"""MP4 box of an XMP packet."""
_GIF_TAIL = bytes([1, *range(255, -1, -1), 0])
"""End of an XMP packet in a GIF. From any offset in it, a reader of GIF blocks reaches the end."""


@dataclass(frozen=True)
class Metadata:
    """Metadata texts to embed in an output file."""

    xmp: bytes
    mark: bytes
    """Packet without the recipe, used if the full one is too long for the format."""
    parameters: str


def png(data: bytes, metadata: Metadata) -> bytes:
    """Embed metadata in a PNG as chunks after the header.

    Source: PNG (Third Edition), 11.3.3; AUTOMATIC1111's key.
    """
    at = 8 + 12 + 13
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0" + metadata.xmp
    return data[:at] + _chunk(b"iTXt", xmp) + _png_text(metadata.parameters) + data[at:]


def _png_text(text: str) -> bytes:
    try:
        return _chunk(b"tEXt", b"parameters\0" + text.encode("latin-1"))
    except UnicodeEncodeError:
        return _chunk(b"iTXt", b"parameters\0\0\0\0\0" + text.encode())


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def jpeg(data: bytes, metadata: Metadata) -> bytes:
    """Embed metadata in a JPEG as EXIF and XMP segments.

    A segment holds 64 KiB. A longer text is omitted, and a longer recipe is replaced by the mark.

    Source: ITU-T T.81, B.1.1.4; XMP Part 3, 1.1.3.
    """
    name = b"http://ns.adobe.com/xap/1.0/\0"
    fits = len(name + metadata.xmp) <= SEGMENT_BYTES
    exif = b"Exif\0\0" + _exif(metadata.parameters)
    parts = [name + (metadata.xmp if fits else metadata.mark)]
    parts += [exif] if len(exif) <= SEGMENT_BYTES else []
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts)
    at = 2
    if data[2:4] == b"\xff\xe0":  # JFIF must be the first segment
        at += 2 + int.from_bytes(data[4:6], "big")
    return data[:at] + segments + data[at:]


def _exif(parameters: str) -> bytes:
    """Build EXIF data, in TIFF, with the parameters as UserComment."""
    exif = Image.Exif()
    exif[EXIF_IFD] = {USER_COMMENT: UNICODE + parameters.encode("utf-16-be")}
    return exif.tobytes().removeprefix(b"Exif\0\0")


def webp(data: bytes, metadata: Metadata) -> bytes:
    """Convert a WebP still image to the extended form with metadata. Source: RFC 9649, 2.7."""
    image = data[12:]
    width, height = _webp_size(image)
    sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    has_exif, has_xmp = 0x08, 0x04
    body = b"WEBP" + _riff(b"VP8X", bytes([has_exif | has_xmp, 0, 0, 0]) + sides) + image
    body += _riff(b"EXIF", _exif(metadata.parameters)) + _riff(b"XMP ", metadata.xmp)
    return _riff(b"RIFF", body)


def _webp_size(chunk: bytes) -> tuple[int, int]:
    """Read width and height of a lossy or lossless WebP image.

    Source: RFC 6386, 9.1; RFC 9649, 3.4.
    """
    if chunk.startswith(b"VP8L"):
        bits = int.from_bytes(chunk[9:13], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", chunk[14:18])
    return width & 0x3FFF, height & 0x3FFF


def _riff(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def gif(data: bytes, metadata: Metadata) -> bytes:
    """Embed metadata in a GIF as extensions before the first frame.

    Source: GIF89a, 18, 24, 26; XMP Part 3, 1.1.2.
    """
    text = metadata.parameters.encode()
    slices = [text[start : start + 255] for start in range(0, len(text), 255)]
    comment = b"\x21\xfe" + b"".join(bytes([len(part)]) + part for part in slices) + b"\0"
    xmp = b"\x21\xff\x0bXMP DataXMP" + metadata.xmp + _GIF_TAIL
    has_palette, bits = data[10] & 0x80, (data[10] & 0x07) + 1
    at = 13 + (3 * 2**bits if has_palette else 0)
    return data[:at] + xmp + comment + data[at:]


def mp4(data: bytes, metadata: Metadata) -> bytes:
    """Embed metadata in an MP4 as a box at the end, so that no other box moves.

    The packet also contains the `parameters`, because the format has no other field for them.

    Source: ISO/IEC 14496-12; XMP Part 3, 1.2.7.
    """
    content = b"uuid" + XMP_UUID + metadata.xmp
    return data + struct.pack(">I", len(content) + 4) + content


EMBED: Mapping[str, Callable[[bytes, Metadata], bytes]] = {
    "image/png": png,
    "image/jpeg": jpeg,
    "image/webp": webp,
    "image/gif": gif,
    "video/mp4": mp4,
}
"""Writers by content type. WebM has none, because no reader looks for XMP there."""
IN_PACKET = frozenset({"video/mp4"})
"""Content types whose packet contains the `parameters`."""


class BrokenRecipe(ValueError):
    """File with an unreadable recipe. The message states the reason."""


def embed(data: bytes, content_type: str, recipe: Recipe) -> bytes:
    """Add recipe, `parameters` and IPTC mark to a file, without changing its pixels.

    Args:
        data: an encoded file without metadata.
        content_type: types not in `EMBED` are returned unchanged.
    """
    if content_type not in EMBED:
        return data
    parameters = parameters_of(recipe)
    inside = parameters if content_type in IN_PACKET else None
    full = xmp.packet(recipe, parameters=inside)
    metadata = Metadata(full, xmp.packet(recipe, is_whole=False), parameters)
    return EMBED[content_type](data, metadata)


def read_recipe(data: bytes) -> Recipe | None:
    """Read the recipe from a file of any format; None if absent.

    Raises: BrokenRecipe.
    """
    try:
        text = xmp.find(data, "recipe")
        return None if text is None else Recipe.model_validate_json(text)
    except ValidationError:
        message = "the file's recipe cannot be read: it lacks a field, or one is wrong"
        raise BrokenRecipe(message) from None
    except ValueError as error:
        raise BrokenRecipe(f"the file's recipe cannot be read: {error}") from None


def read_parameters(data: bytes) -> str | None:
    """Read AUTOMATIC1111's `parameters` from a file of any program; None if absent."""
    try:
        return _of_image(data) or xmp.find(data, "parameters")
    except Exception:  # decoders raise arbitrary errors for hostile files
        return None


def _of_image(data: bytes) -> str | None:
    try:
        shown = without_metadata(data, kept=frozenset({b"parameters"}))
        with Image.open(io.BytesIO(shown), formats=READ) as image:
            return _text(image)
    except UnidentifiedImageError:
        return None


def _text(image: Image.Image) -> str | None:
    """Read the text that AUTOMATIC1111 writes for an image's format."""
    if isinstance(image, PngImagePlugin.PngImageFile):
        return image.text.get("parameters")
    if image.format == "GIF":
        comment = image.info.get("comment", b"")
        return comment.decode(errors="replace") if isinstance(comment, bytes) else str(comment)
    return _comment(image.getexif().get_ifd(EXIF_IFD).get(USER_COMMENT, b""))


def _comment(value: bytes | str) -> str | None:
    """Decode an EXIF UserComment: UTF-16 if marked as Unicode, else ASCII.

    UTF-16 may have either byte order. In the right one, the high bytes of most characters are zero,
    since the names of settings are English.
    """
    if isinstance(value, str):
        return value
    if value.startswith(UNICODE):
        text = value[len(UNICODE) :]
        order = "le" if text[1::2].count(0) > text[::2].count(0) else "be"
        return text.decode(f"utf-16-{order}", errors="replace")
    return value[8:].decode("utf-8", errors="replace").strip("\0 ") or None
