"""A request's body as strict JSON: bounded while it arrives, and no guessing while it is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi import Request

from service.errors.problems import BodyTooLarge, UnsupportedMedia
from service.http.inflight_limits import Hold
from service.http.json_reader import JsonReader

T = TypeVar("T")

DRAIN_S = 5.0
"""Time for reading and dropping the rest of a body that is too large."""

SLICE_BYTES = 2**14
"""Bytes handled at once: other requests get their turn after a few milliseconds at the most."""

SHORT_BYTES = 2**14
"""Maximum size parsed and validated in the event loop: a millisecond or two."""


async def read_json(
    request: Request, max_bytes: int, hold: Hold, validate: Callable[[dict[str, Any]], T]
) -> T:
    """Read the body, a JSON object, and return what `validate` makes of it.

    Args:
        hold: counts the body's bytes as they arrive.

    Raises:
        UnsupportedMedia: it is not declared as (plain, UTF-8) JSON.
        BodyTooLarge: it has more than `max_bytes`, whatever its Content-Length says.
        Malformed: it is no JSON object, or one that readers would not agree on.
        Problem: what `hold` and the validation raise.
    """
    _check_type(request)
    reader = await _read(request, max_bytes, hold)
    if reader.plain_bytes <= SHORT_BYTES:
        return validate(reader.finish())
    return await asyncio.to_thread(lambda: validate(reader.finish()))


def _check_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media, _, rest = content_type.partition(";")
    charset = rest.strip().lower().removeprefix("charset=").strip('"')
    if media.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMedia(
            "send the body as JSON in UTF-8, with the header Content-Type: application/json"
        )
    _check_encoding(request)


def _check_encoding(request: Request) -> None:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("send the body without a Content-Encoding")


async def read_bytes(request: Request, max_bytes: int, hold: Hold) -> bytes:
    """Return the body as it is.

    Args:
        hold: counts the body's bytes as they arrive.

    Raises:
        UnsupportedMedia: it has a Content-Encoding.
        BodyTooLarge: it has more than `max_bytes`.
        Problem: what `hold` raises.
    """
    _check_encoding(request)
    data = bytearray()
    async for chunk in _chunks(request, max_bytes, hold):
        data += chunk
    return bytes(data)


async def _read(request: Request, max_bytes: int, hold: Hold) -> JsonReader:
    reader = JsonReader()
    async for chunk in _chunks(request, max_bytes, hold):
        for start in range(0, len(chunk), SLICE_BYTES):
            reader.feed(chunk[start : start + SLICE_BYTES])
            if len(chunk) > SLICE_BYTES:  # waiting for the next chunk gives others their turn
                await asyncio.sleep(0)
    return reader


async def _chunks(request: Request, max_bytes: int, hold: Hold) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises: BodyTooLarge, and what `hold` raises."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise await _too_large(request, max_bytes)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise await _too_large(request, max_bytes)
        hold.add(len(chunk))
        yield chunk


async def _too_large(request: Request, max_bytes: int) -> BodyTooLarge:
    """Lets the client finish a little more, since it may read the answer only after that."""
    if "expect" not in request.headers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await _discard(request, max_bytes)
    return BodyTooLarge(
        f"the body may have {max_bytes} bytes; send a smaller image",
        headers={"Connection": "close"},
    )


async def _discard(request: Request, max_bytes: int) -> None:
    seen, more = 0, True
    while more and seen <= max_bytes:
        message = await request.receive()
        seen += len(message.get("body", b""))
        more = message.get("more_body", False)
