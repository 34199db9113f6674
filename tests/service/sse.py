"""Minimal reader of server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Message:
    """One server-sent event. A comment has the name ':'."""

    id: str
    name: str
    data: Any


async def messages(response: httpx.Response) -> AsyncIterator[Message]:
    """Yield the stream's events and comments as they arrive."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield Message("", ":", line)
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Message(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
