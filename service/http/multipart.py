"""Forms with files (multipart/form-data), streamed into their parts as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from service.errors.did_you_mean import did_you_mean
from service.errors.problems import (
    BodyTooLarge,
    FieldError,
    Invalid,
    Malformed,
    Problem,
    UnsupportedMedia,
)
from service.http.body import DRAIN_S, SLICE_BYTES
from service.http.form_parts import Part
from service.schemas.unknown_fields import ALIASES

MEDIA_TYPE = "multipart/form-data"
MAX_FILENAME_CHARS = 255
MAX_LISTED = 16
"""Maximum number of a form's parts that an error lists."""
LONG_BOUNDARY = "the boundary in Content-Type is too long; use up to 70 characters"
BROKEN_PARTS = "a boundary or the header of a part is broken"
_INDEX = re.compile(r"\d{0,4}\]", re.ASCII)
"""Rest of a part's name after the bracket, in which clients number the files of a list."""
FRAMING_BYTES = 2**16
"""Maximum size of a form in addition to its parts: boundaries and headers."""


async def read_form(
    request: Request,
    parts: Mapping[str, Part],
    max_bytes: int | None = None,
    arrived: Callable[[int], None] = lambda count: None,
) -> None:
    """Read a multipart body into the form's parts, by name.

    Args:
        max_bytes: limit for all parts together. Default: the sum of their limits.
        arrived: called with the size of each piece.

    Raises:
        UnsupportedMedia: not a form.
        BodyTooLarge: a part, or the form, exceeds its limit.
        Malformed: a broken form.
        Invalid: a part has an unknown name, or is repeated.
        ClientDisconnect: the client disconnected.
    """
    chunks = _Chunks(request, [*parts.values()], max_bytes)
    form = _Form(_boundary(request), parts)
    try:
        async for chunk in chunks:
            arrived(len(chunk))
            for start in range(0, len(chunk), SLICE_BYTES):
                form.feed(chunk[start : start + SLICE_BYTES])
                await asyncio.sleep(0)
            for part in parts.values():
                await part.settle()
        form.finish()
    except Problem:
        await chunks.drain()
        raise
    for part in parts.values():
        await part.settle(ends=True)


def _boundary(request: Request) -> bytes:
    media, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if media.lower() != MEDIA_TYPE.encode() or not boundary:
        raise UnsupportedMedia(
            f"send a form, with the header Content-Type: {MEDIA_TYPE} and its boundary"
            " (curl -F NAME=VALUE, and NAME=@PATH for a file)"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("send the form without a Content-Encoding")
    return boundary


class _Chunks:
    """Iterator over a request's body, with a size limit."""

    def __init__(self, request: Request, parts: Sequence[Part], max_bytes: int | None) -> None:
        self._receive = request.receive
        self._largest = max(parts, key=lambda part: part.max_bytes)
        limit = sum(part.max_bytes for part in parts) if max_bytes is None else max_bytes
        self._max_bytes = FRAMING_BYTES + limit
        self._expects_continue = "expect" in request.headers
        declared = request.headers.get("content-length", "")
        self._declared = int(declared[:18]) if declared.isdigit() else 0
        self._has_more = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the form's bytes as they arrive. Raises: BodyTooLarge, ClientDisconnect."""
        received = 0
        while self._has_more:
            if max(received, self._declared) > self._max_bytes:
                raise BodyTooLarge(
                    f"the form may have {self._max_bytes} bytes, of which {self._largest.what} may"
                    f" have {self._largest.max_bytes}"
                )
            chunk = await self._next()
            received += len(chunk)
            yield chunk

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._has_more = message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def drain(self) -> None:
        """Discard a bounded rest of the body: some clients read the response only at its end."""
        if self._expects_continue:
            return
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(DRAIN_S):
                while self._has_more:
                    await self._next()


class _Form:
    """Incremental parser of a multipart form, which feeds the form's parts."""

    def __init__(self, boundary: bytes, parts: Mapping[str, Part]) -> None:
        """Create the parser of a form. Raises: Malformed: the boundary is too long."""
        self._parts = parts
        self._field_names: set[str] = set()
        self._part: Part | None = None
        self._header = self._value = b""
        self._disposition = b""
        self._is_whole = False
        self._framing_bytes = 0
        """Number of bytes that belong to no part: boundaries, headers, what precedes the parts."""
        self._after_end = 0
        """Number of bytes after the last boundary, which are ignored."""
        with _malformed(LONG_BOUNDARY):
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": partial(self._add, "_header"),
                    "on_header_value": partial(self._add, "_value"),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )

    def feed(self, data: bytes) -> None:
        """Parse received bytes of the form. Raises: as `read_form`."""
        if self._is_whole:
            self._after_end += len(data)
            if self._after_end > FRAMING_BYTES:
                raise Malformed(f"the form is invalid: more than {FRAMING_BYTES} bytes follow it")
            return
        self._framing_bytes += len(data)
        with _malformed(BROKEN_PARTS):
            self._parser.write(data)
        if self._framing_bytes > FRAMING_BYTES:
            raise Malformed(
                f"the form is invalid: its boundaries and headers have more than {FRAMING_BYTES}"
                " bytes; send fewer parts"
            )

    def finish(self) -> None:
        """Check that the form is complete. Raises: Malformed."""
        if not self._is_whole:
            raise Malformed("the form is invalid: it has no end")

    def _begin(self) -> None:
        self._disposition = b""

    def _add(self, name: str, data: bytes, start: int, end: int) -> None:
        setattr(self, name, getattr(self, name) + data[start:end])

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data":  # RFC 7578, section 4.2
            raise Malformed("the form is invalid: a part is not declared as form-data")
        name = options.get(b"name", b"").decode("utf-8", "replace")
        name = self._part_name(name)
        if name in self._field_names and not self._parts[name].repeats:
            raise Invalid([FieldError(name, "occurs twice")])
        self._field_names.add(name)
        self._part = self._parts[name]
        self._part.filename = _filename(options.get(b"filename", b""))
        self._part.begin()

    def _part_name(self, name: str) -> str:
        """Return the form part with that name; `image[]` and `image[0]` repeat `image`.

        Raises: Invalid.
        """
        part, _, index = name.partition("[")
        if name in self._parts:
            return name
        if part in self._parts and self._parts[part].repeats and _INDEX.fullmatch(index):
            return part
        raise Invalid([FieldError(name or "body", self._unknown(name))])

    def _unknown(self, name: str) -> str:
        part, bracket, _ = name.partition("[")
        if bracket and part in self._parts and not self._parts[part].repeats:
            return f"is not a part of the form; send all of {part} as JSON, in the part {part}"
        is_short = len(self._parts) <= MAX_LISTED
        more = f"available: {', '.join(self._parts)}" if is_short else "see /docs"
        message = f"is not a part of the form; {more}"
        suggestion = did_you_mean(name, self._parts, ALIASES[""])
        return f"{message}; did you mean {suggestion}?" if suggestion in self._parts else message

    def _data(self, data: bytes, start: int, end: int) -> None:
        assert self._part is not None
        self._framing_bytes -= end - start
        self._part.add(data[start:end])

    def _end(self) -> None:
        self._is_whole = True


def _filename(name: bytes) -> str:
    """Return the base name of an uploaded file, without unprintable characters."""
    text = name.decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in text if letter.isprintable())[:MAX_FILENAME_CHARS]


@contextlib.contextmanager
def _malformed(reason: str) -> Iterator[None]:
    """Convert errors of the multipart parser to Malformed with this reason."""
    try:
        yield
    except FormParserError:
        raise Malformed(f"the form is invalid: {reason}") from None
