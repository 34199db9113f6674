"""Images that come with a request: in base64, or behind an address.

Pools get each file as it was sent, once a child process has decoded it as they will.
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

from models.spec.image_files import ImageFile, ImageFileError
from models.spec.request_images import VIDEO_FIELDS, field_of, image_values
from models.spec.video_files import VideoBounds
from service.errors.problems import FieldError, Invalid
from service.front_end.front_end import FrontEnd
from service.http import fetch
from service.schemas.request_parts import http_url
from service.settings.limits import LimitSettings

_LETTERS = (bytes.maketrans(b"-_", b"+/"), b" \t\r\n")
"""Characters to replace in base64, and characters to drop."""
_PERCENT = (
    ("%2B", "+"), ("%2b", "+"), ("%2F", "/"), ("%2f", "/"), ("%3D", "="), ("%3d", "="),
    ("%0D", ""), ("%0d", ""), ("%0A", ""), ("%0a", ""), ("%20", ""),
)  # fmt: skip
"""Percent-encoded characters of base64 in URIs, and what they stand for."""
_SLICE_CHARS = 2**18


@dataclass(frozen=True)
class RequestImage:
    """An image of a request: the file with what was read of its head."""

    data: bytes
    """The file, as it was sent."""
    file: ImageFile


async def read_all(
    front: FrontEnd, fields: Mapping[str, Any], client: str
) -> dict[str, RequestImage]:
    """The request's images by path, each checked.

    Args:
        client: whose turn it takes.

    Raises: Invalid; Busy, Unavailable: too many wait to be fetched.
    """
    found, frames = {}, fields.get("num_frames", 1)
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
            found[path] = RequestImage(data, file)
        except ImageFileError as error:
            raise Invalid([FieldError(path, str(error))]) from error
    return found


def _check_frames(path: str, file: ImageFile, pixels: int, limits: LimitSettings) -> None:
    """Check that a video's frames, sent as images, are no more than one that is sent as a file.

    Args:
        pixels: of the frames so far.

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
            f"and the frames before it have {pixels} pixels; {limits.max_clip_pixels} are allowed:"
            " send fewer frames, or smaller ones"
        )


def _bounds(front: FrontEnd, frames: int) -> VideoBounds:
    """Return the bounds of a video that comes with a request for one of so many frames."""
    limits = front.settings.limits
    return VideoBounds(frames, limits.max_clip_pixels, limits.max_frame_pixels)


async def bytes_of(front: FrontEnd, value: str, client: str) -> bytes:
    """Return the file that a field holds, or the address in it. Raises: ImageFileError."""
    if is_url(value):
        return await _fetch(front, value, client)
    return await asyncio.to_thread(from_base64, value)


async def _fetch(front: FrontEnd, url: str, client: str) -> bytes:
    """Raises: ImageFileError."""
    server, most = front.settings.server, front.settings.limits.max_body_bytes
    if not server.allow_image_urls:
        raise ImageFileError(
            "is an address, which this server does not fetch; send the image itself in base64"
        )
    try:
        host = fetch.host_of(httpx.URL(http_url(url)))
        async with front.fetches.place(client, host):
            return await fetch.fetch(
                front.http, url, client, max_bytes=most, timeout_s=server.fetch_timeout_s
            )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
        said = str(error) or "it did not answer in time"
        raise ImageFileError(f"cannot be fetched: {said}") from error


def is_url(value: str) -> bool:
    """Return whether a field's value is an address, not a file."""
    return value[:8].lower().startswith(("http://", "https://"))


def from_base64(value: str) -> bytes:
    """The bytes of a data URI or of bare base64; line breaks and the URL-safe letters are fine.

    Reads slices, so that no other thread waits for long.

    Raises: ImageFileError.
    """
    if not value.isascii():
        raise ImageFileError("is neither a data URI nor base64")
    text = _payload(value) if value[:5].lower() == "data:" else value
    data, rest = bytearray(), b""
    for part in _slices(text):
        letters = rest + _unquoted(part).encode().translate(*_LETTERS)
        whole = len(letters) - len(letters) % 4
        data += _decoded(letters[:whole])
        rest = letters[whole:]
    if rest:
        raise ImageFileError(
            "is no whole base64: its length must be a multiple of 4, with = at the end"
        )
    if not data:
        raise ImageFileError("is empty")
    return bytes(data)


def _decoded(letters: bytes) -> bytes:
    try:
        return base64.b64decode(letters, validate=True)
    except binascii.Error as error:
        raise ImageFileError(f"is neither a data URI nor base64: {error}") from None


def _payload(uri: str) -> str:
    comma = uri.find(",")
    if comma < 0 or not uri[:comma].lower().rstrip().endswith(";base64"):
        raise ImageFileError("is a data URI without ;base64, before its comma")
    return uri[comma + 1 :]


def _slices(text: str) -> Iterator[str]:
    """The text in parts, none of which cuts what a URI writes with a percent sign."""
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
