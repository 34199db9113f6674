"""MCP message passed to the SDK, with placeholders instead of long texts."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.types import Message as ReceivedMessage
from starlette.types import Receive

from service.errors.problems import BodyTooLarge, Malformed
from service.http.body import SLICE_BYTES
from service.http.inflight_limits import Hold
from service.http.json_reader import JsonReader

MAX_TEXT_CHARS = 2**16
"""Maximum length of texts passed to the SDK; longer than any prompt."""


class Message:
    """ASGI `receive` that reads a message within limits, in slices, and shortens its texts.

    The SDK receives a short placeholder instead of each long text. It would otherwise parse and
    copy images of many megabytes several times, and block the event loop meanwhile.
    """

    def __init__(self, receive: Receive, max_bytes: int, hold: Hold) -> None:
        self.texts: dict[str, str] = {}
        """Long texts by their random placeholders."""
        self._receive = receive
        self._max_bytes = max_bytes
        self._hold = hold
        self._is_read = False

    async def __call__(self) -> ReceivedMessage:
        """Return the whole shortened body once, then the following ASGI messages.

        Raises: BodyTooLarge, Malformed; Busy, Unavailable.
        """
        if self._is_read:
            return await self._receive()
        with self._hold.receiving():
            reader = await self._read()
        if reader is None:
            return {"type": "http.disconnect"}
        self._is_read = True
        body = await asyncio.to_thread(lambda: self._body(reader.finish()))
        return {"type": "http.request", "body": body, "more_body": False}

    async def _read(self) -> JsonReader | None:
        """Read the body; None: the client disconnected. Raises: BodyTooLarge, Malformed; Busy."""
        reader, received_bytes, has_more = JsonReader(), 0, True
        while has_more:
            message = await self._receive()
            if message["type"] != "http.request":
                return None
            data, has_more = message.get("body", b""), message.get("more_body", False)
            received_bytes += len(data)
            if received_bytes > self._max_bytes:
                detail = f"the body may have {self._max_bytes} bytes; send a smaller image"
                raise BodyTooLarge(detail)
            self._hold.add(len(data))
            for start in range(0, len(data), SLICE_BYTES):
                reader.feed(data[start : start + SLICE_BYTES])
                await asyncio.sleep(0)
        return reader

    def _body(self, message: dict[str, Any]) -> bytes:
        """Return the shortened message for the MCP SDK. Raises: Malformed: no JSON-RPC message."""
        if reason := _fault_of(message):
            raise Malformed(f"the body is not a JSON-RPC message: {reason}")
        return json.dumps(self._shortened(message)).encode()

    def _shortened(self, value: Any) -> Any:
        """Replace long texts in a JSON value with placeholders."""
        match value:
            case str() if len(value) > MAX_TEXT_CHARS:
                name = f"text {secrets.token_hex(16)}"
                self.texts[name] = value
                return name
            case dict():
                return {key: self._shortened(member) for key, member in value.items()}
            case list():
                return [self._shortened(member) for member in value]
        return value


def _fault_of(message: Mapping[str, Any]) -> str:
    """Return why a JSON object is not a JSON-RPC message; empty if it is one.

    Source: JSON-RPC 2.0, sections 4 and 5.
    """
    number = message.get("id")
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if isinstance(number, bool) or not isinstance(number, str | int | None):
        return "id must be a whole number or a text"
    if "method" not in message:
        return "" if message.keys() & {"result", "error"} else "method is required"
    if not isinstance(message["method"], str):
        return "method must be a text"
    is_object = isinstance(message.get("params"), Mapping | None)
    return "" if is_object else "params must be an object"
