"""Input images and videos of a request: decode base64, or fetch a URL, and check each file.

Workers receive each file unchanged, after a child process here has decoded it in the same way.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from models.media.image_files import ImageFile, ImageFileError
from models.media.video_files import VideoBounds
from models.spec.request_images import VIDEO_FIELDS, field_of, image_values
from service.errors.problems import FieldError, Invalid
from service.front_end.front_end import FrontEnd
from service.http import fetch
from service.schemas.request_parts import http_url
from service.settings.limits import LimitSettings

_LETTERS = (bytes.maketrans(b"-_", b"+/"), b" \t\r\n")
"""Translation of the URL-safe base64 alphabet, and whitespace to delete."""
_PERCENT = (
    ("%2B", "+"), ("%2b", "+"), ("%2F", "/"), ("%2f", "/"), ("%3D", "="), ("%3d", "="),
    ("%0D", ""), ("%0d", ""), ("%0A", ""), ("%0a", ""), ("%20", ""),
)  # fmt: skip
"""Percent-encoded characters of base64 in data URIs, and their replacements."""
_SLICE_CHARS = 2**18


@dataclass(frozen=True)
class RequestImage:
    """Input file of a request, with the metadata of its header."""

    data: bytes
    """Bytes of the file, unchanged."""
    file: ImageFile


async def read_all(
    front: FrontEnd, fields: Mapping[str, Any], client: str
) -> dict[str, RequestImage]:
    """Read and check the input images and videos of a request; return them by field path.

    Args:
        client: key of the per-client limits on fetching and checking.

    Raises: Invalid; Busy, Unavailable: too many fetches are waiting.
    """
    images, frames = {}, fields.get("num_frames", 1)
    pixels: Counter[str] = Counter()
    for path, value in image_values(fields).items():
        try:
            data = await bytes_of(front, value, client)
            if path in VIDEO_FIELDS:
                file = await front.images.check_video(data, _bounds(front, frames), client)
            else:
                file = await front.images.check(data, client)
                pixels[field_of(path)] += file.width * file.height
                _check_frames(path, file, pixels[field_of(path)], front.settings.limits)
            images[path] = RequestImage(data, file)
        except ImageFileError as error:
            raise Invalid([FieldError(path, str(error))]) from error
    return images


def _check_frames(path: str, file: ImageFile, pixels: int, limits: LimitSettings) -> None:
    """Check that a video sent as separate frames meets the same limits as a video file.

    Args:
        pixels: total of the frames so far.

    Raises: ImageFileError.
    """
    if field_of(path) not in VIDEO_FIELDS:
        return
    if file.width * file.height > limits.max_frame_pixels:
        raise ImageFileError(
            f"has {file.width} x {file.height} pixels; a frame may have {limits.max_frame_pixels}"
        )
    if pixels > limits.max_clip_pixels:
        raise ImageFileError(
            f"has, with the frames before it, {pixels} pixels; {limits.max_clip_pixels} are"
            " allowed: send fewer frames, or smaller ones"
        )


def _bounds(front: FrontEnd, frames: int) -> VideoBounds:
    """Return the limits on an input video for a request with `frames` frames."""
    limits = front.settings.limits
    return VideoBounds(frames, limits.max_clip_pixels, limits.max_frame_pixels)


async def bytes_of(front: FrontEnd, value: str, client: str) -> bytes:
    """Fetch the URL in a request field, or decode its base64. Raises: ImageFileError."""
    if is_url(value):
        return await _fetch(front, value, client)
    return await asyncio.to_thread(from_base64, value)


async def _fetch(front: FrontEnd, url: str, client: str) -> bytes:
    """Download a file within the size, time and concurrency limits. Raises: ImageFileError."""
    server, max_bytes = front.settings.server, front.settings.limits.max_body_bytes
    if not server.allow_image_urls:
        raise ImageFileError("is a URL, and this server fetches no URLs; send the image in base64")
    try:
        host = fetch.host_of(httpx.URL(http_url(url)))
        async with front.fetches.slot(client, host):
            return await fetch.fetch(
                front.http, url, client, max_bytes=max_bytes, timeout_s=server.fetch_timeout_s
            )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
        raise ImageFileError(f"cannot be fetched: {_fetch_fault(error)}") from error


def _fetch_fault(error: Exception) -> str:
    """Return why a download failed, without the text of the HTTP library."""
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "no response in time"
    if isinstance(error, fetch.ForbiddenAddress | httpx.HTTPStatusError | ValueError):
        return str(error)
    return "the connection to its server failed"


def is_url(value: str) -> bool:
    """Return whether a field's value is an HTTP URL and not an encoded file."""
    return value[:8].lower().startswith(("http://", "https://"))


def from_base64(value: str) -> bytes:
    """Decode a data URI or bare base64 of an input file, also in the URL-safe alphabet.

    It decodes slices, so that other threads do not wait long for the GIL.

    Raises: ImageFileError.
    """
    if not value.isascii():
        raise ImageFileError("is neither a data URI nor base64")
    text = _payload(value) if value[:5].lower() == "data:" else value
    data, rest = bytearray(), b""
    for text_slice in _slices(text):
        encoded = rest + _unquoted(text_slice).encode().translate(*_LETTERS)
        complete = len(encoded) - len(encoded) % 4
        data += _decoded(encoded[:complete])
        rest = encoded[complete:]
    if rest:
        raise ImageFileError(
            "is incomplete base64: its length must be a multiple of 4, with = at the end"
        )
    if not data:
        raise ImageFileError("is empty")
    return bytes(data)


def _decoded(letters: bytes) -> bytes:
    try:
        return base64.b64decode(letters, validate=True)
    except binascii.Error:
        message = "a character is not of base64, or = is not at the end"
        raise ImageFileError(f"is neither a data URI nor base64: {message}") from None


def _payload(uri: str) -> str:
    comma = uri.find(",")
    if comma < 0 or not uri[:comma].lower().rstrip().endswith(";base64"):
        raise ImageFileError("is a data URI without ;base64, before its comma")
    return uri[comma + 1 :]


def _slices(text: str) -> Iterator[str]:
    """Split encoded text into slices that never cut a percent-encoded character."""
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARS
        cut = text.find("%", end - 2, end)
        yield text[start : (end := cut if cut > 0 else end)]
        start = end


def _unquoted(part: str) -> str:
    if "%" in part:
        for code, letter in _PERCENT:
            part = part.replace(code, letter)
    return part
