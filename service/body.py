"""A request's body as strict JSON: bounded while it arrives, and no guessing while it is read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, NoReturn

from fastapi import Request

from service.errors import BodyTooLarge, Malformed, UnsupportedMedia

MAX_DEPTH = 16
"""Of nested lists and objects; the deepest field of the API needs four."""

DRAIN_S = 5.0
"""How long the rest of a body that is too large is read and thrown away."""


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        UnsupportedMedia: it is not declared as (plain, UTF-8) JSON.
        BodyTooLarge: it has more than `max_bytes`, whatever its Content-Length says.
        Malformed: it is no JSON object, or one that readers would not agree on.
    """
    _check_type(request)
    return parse_object(await _read(request, max_bytes))


def _check_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media, _, rest = content_type.partition(";")
    charset = rest.strip().lower().removeprefix("charset=").strip('"')
    if media.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMedia(
            "send the body as JSON in UTF-8, with the header Content-Type: application/json"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("send the body without a Content-Encoding")


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise await _too_large(request, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise await _too_large(request, max_bytes)
    return bytes(body)


async def _too_large(request: Request, max_bytes: int) -> BodyTooLarge:
    """Lets the client finish a little more, since it may read the answer only after that."""
    if "expect" not in request.headers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await _discard(request, max_bytes)
    return BodyTooLarge(
        f"the body may have {max_bytes} bytes; send a smaller picture",
        headers={"Connection": "close"},
    )


async def _discard(request: Request, max_bytes: int) -> None:
    seen, more = 0, True
    while more and seen <= max_bytes:
        message = await request.receive()
        seen += len(message.get("body", b""))
        more = message.get("more_body", False)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object; repeated keys, NaN, deep nesting and unreadable numbers are refused.

    Raises: Malformed.
    """
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise Malformed(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise Malformed(f"the body is no valid JSON: {_where(error)}") from None
    if not isinstance(value, dict):
        raise Malformed('the body must be a JSON object, such as {"prompt": "a cat"}')
    _check_depth(value, MAX_DEPTH)
    return value


def _where(error: ValueError) -> str:
    """What is wrong, without the body in the message."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno} column {error.colno}"
    return "a number has too many digits" if "digits" in str(error) else str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name, inner in pairs:
        if name in value:
            raise ValueError(f"the key {name[:40]!r} stands there twice")
        value[name] = inner
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, list | dict):
        return
    if left == 0:
        raise Malformed(f"the body is nested deeper than {MAX_DEPTH} levels")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, left - 1)
