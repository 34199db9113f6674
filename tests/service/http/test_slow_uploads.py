"""Slow uploads at endpoints that receive files: they end if another client needs their room.

Those of adapters are in tests/service/routes/test_loras.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.front_end.front_end import FrontEnd
from service.http.upload_slots import GRACE_S, ActiveUpload
from service.settings.settings import Settings
from tests.service.eventually import eventually
from tests.service.standin import StandIn, picture

TOTAL_BYTES = 40_000
UPLOADS = 4
"""Number of slow uploads, two from each of two clients, which together reach the limits."""
END = b"\r\n--x--\r\n"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    limits = settings.limits.model_copy(update={"max_inflight_bytes": TOTAL_BYTES})
    return settings.model_copy(update={"limits": limits})


def field(name: str, value: bytes, filename: str = "") -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value


JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
IN_MEMORY = (
    pytest.param("/v1/generate", JSON, b'{"prompt": "', b'a cat"}', id="JSON"),
    pytest.param(
        *("/mcp", JSON, b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_": "'),
        b'"}}',
        id="MCP",
    ),
    pytest.param(
        *("/v1/images/edits", FORM, field("image", b"", "a.png")),
        picture() + b"\r\n" + field("prompt", b"a cat") + END,
        id="form",
    ),
    pytest.param(
        *("/v1/verify", {"Content-Type": "image/png"}, picture()[:1], picture()[1:]), id="raw file"
    ),
)
IN_SLOTS = (
    pytest.param(
        *("/v1/files", FORM, field("purpose", b"batch\r\n") + field("file", b"", "a.jsonl")),
        json.dumps({"custom_id": "a"}).encode() + END,
        id="file of a batch",
    ),
    pytest.param(
        *("/v1/files", FORM, field("content", b"", "a.png")), picture() + END, id="Replicate's file"
    ),
)


@pytest.mark.parametrize(("path", "headers", "begin", "rest"), [*IN_MEMORY, *IN_SLOTS])
async def test_slow_uploads_of_others_end(
    app: FastAPI, pool: StandIn, path: str, headers: dict[str, str], begin: bytes, rest: bytes
) -> None:
    front: FrontEnd = app.state.front

    def arriving() -> Collection[ActiveUpload]:
        return front.uploads.uploads if path == "/v1/files" else front.bodies.uploads

    async def slow_body() -> AsyncIterator[bytes]:
        held = 0 if headers is FORM else len(begin)
        yield begin + b"x" * (TOTAL_BYTES // UPLOADS - held)
        await asyncio.Event().wait()

    async def send(client: int, content: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(f"10.0.0.{client}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post(path, content=content, headers=headers)

    async def have_arrived() -> bool:
        received = [upload.bytes >= TOTAL_BYTES // UPLOADS for upload in arriving()]
        return len(received) == UPLOADS and all(received)

    slow = [asyncio.create_task(send(number % 2, slow_body())) for number in range(UPLOADS)]
    await eventually(have_arrived)
    refused = await send(2, begin + rest)
    assert refused.status_code == 503 and "all clients together" in refused.text
    for upload in (*front.uploads.uploads, *front.bodies.uploads):
        upload.began -= GRACE_S
    served = await send(2, begin + rest)
    assert served.status_code not in (429, 503), served.text
    ended, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    answer = ended.pop().result()
    assert answer.status_code == 503 and "upload_too_slow" in answer.text
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert not front.bodies.uploads and not front.bodies.all
