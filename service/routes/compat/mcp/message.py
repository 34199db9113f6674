"""A message of an agent on its way to the SDK, without its long texts."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from starlette.types import Message as ReceivedMessage
from starlette.types import Receive

from service.errors.problems import BodyTooLarge
from service.http.body import SLICE_BYTES
from service.http.inflight_limits import Hold
from service.http.json_reader import JsonReader

MAX_TEXT_CHARS = 2**16
"""Length of texts that the SDK is given; longer than any prompt."""


class Message:
    """Message of an agent, read as any JSON of clients is: within bounds, a piece at a time.

    The SDK gets the message with a short placeholder instead of each long text. It would parse and
    copy images of many megabytes several times, and block the event loop meanwhile.
    """

    def __init__(self, receive: Receive, max_bytes: int, hold: Hold) -> None:
        self.texts: dict[str, str] = {}
        """Long texts by their placeholders, which are random."""
        self._receive = receive
        self._max_bytes = max_bytes
        self._hold = hold
        self._is_read = False

    async def __call__(self) -> ReceivedMessage:
        """Return the whole body, then what follows it.

        Raises: BodyTooLarge, Malformed; Busy, Unavailable.
        """
        if self._is_read:
            return await self._receive()
        reader, seen, has_more = JsonReader(), 0, True
        while has_more:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            data, has_more = message.get("body", b""), message.get("more_body", False)
            seen += len(data)
            if seen > self._max_bytes:
                detail = f"the body may have {self._max_bytes} bytes; send a smaller image"
                raise BodyTooLarge(detail)
            self._hold.add(len(data))
            for start in range(0, len(data), SLICE_BYTES):
                reader.feed(data[start : start + SLICE_BYTES])
                await asyncio.sleep(0)
        self._is_read = True
        body = await asyncio.to_thread(
            lambda: json.dumps(self._shortened(reader.finish())).encode()
        )
        return {"type": "http.request", "body": body, "more_body": False}

    def _shortened(self, value: Any) -> Any:
        """Return a value with placeholders instead of long texts."""
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
