"""Request bodies as strict JSON, with a size limit enforced while they arrive."""

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
"""Time limit for reading and discarding the rest of an oversized body."""

SLICE_BYTES = 2**14
"""Bytes processed at once, so that other requests wait a few milliseconds at most."""

SHORT_BYTES = 2**14
"""Maximum size parsed and validated in the event loop: a millisecond or two."""


async def read_json(
    request: Request, max_bytes: int, hold: Hold, validate: Callable[[dict[str, Any]], T]
) -> T:
    """Read the body, a JSON object, and return the result of `validate`.

    Args:
        hold: counts the body's bytes as they arrive.

    Raises:
        UnsupportedMedia: not declared as (plain, UTF-8) JSON.
        BodyTooLarge: more than `max_bytes`, regardless of Content-Length.
        Malformed: not a JSON object, or ambiguous JSON.
        Problem: raised by `hold` or the validation.
    """
    _check_type(request)
    with hold.receiving():
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
    """Read a request's raw body, within a size limit.

    Args:
        hold: counts the body's bytes as they arrive.

    Raises:
        UnsupportedMedia: the body has a Content-Encoding.
        BodyTooLarge: more than `max_bytes`.
        Problem: raised by `hold`.
    """
    _check_encoding(request)
    data = bytearray()
    with hold.receiving():
        async for chunk in _chunks(request, max_bytes, hold):
            data += chunk
    return bytes(data)


async def _read(request: Request, max_bytes: int, hold: Hold) -> JsonReader:
    reader = JsonReader()
    async for chunk in _chunks(request, max_bytes, hold):
        for start in range(0, len(chunk), SLICE_BYTES):
            reader.feed(chunk[start : start + SLICE_BYTES])
            if len(chunk) > SLICE_BYTES:  # awaiting the next chunk yields to other requests
                await asyncio.sleep(0)
    return reader


async def _chunks(request: Request, max_bytes: int, hold: Hold) -> AsyncIterator[bytes]:
    """Yield a request body's chunks as they arrive. Raises: BodyTooLarge, and errors of `hold`."""
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
    """Discard a bounded rest of a too large body: some clients read the response only after it."""
    if "expect" not in request.headers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await _discard(request, max_bytes)
    return BodyTooLarge(
        f"the body may have {max_bytes} bytes; send a smaller image",
        headers={"Connection": "close"},
    )


async def _discard(request: Request, max_bytes: int) -> None:
    discarded, has_more = 0, True
    while has_more and discarded <= max_bytes:
        message = await request.receive()
        discarded += len(message.get("body", b""))
        has_more = message.get("more_body", False)
