"""Requests that are unfinished when the server's shutdown ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from service.front_end.front_end import FrontEnd


class SlowClient:
    """Client that sends a request's headers, and never its body."""

    def __init__(self, app: FastAPI, path: str) -> None:
        self.is_read = asyncio.Event()
        self.sent: list[Message] = []
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
            **{"headers": headers, "query_string": b"", "http_version": "1.1", "scheme": "http"},
            **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": ""},
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        self.is_read.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/images/generations"])
async def test_cancelled_request_gets_503_that_says_why(app: FastAPI, path: str) -> None:
    front: FrontEnd = app.state.front
    client = SlowClient(app, path)
    await client.is_read.wait()
    front.stopping.set()
    client.task.cancel()  # as uvicorn does at the end of `shutdown_grace_s`
    await client.task
    start, body = client.sent
    assert start["status"] == 503
    assert (b"retry-after", b"2") in start["headers"]
    error: dict[str, Any] = json.loads(body["body"])["error"]
    assert error["code"] == "server_stopping"
    assert "the server is stopping" in error["message"]


async def test_request_cancelled_for_another_reason_gets_no_response(app: FastAPI) -> None:
    client = SlowClient(app, "/v1/generate")
    await client.is_read.wait()
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert not client.sent
