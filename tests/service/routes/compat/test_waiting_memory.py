"""Bodies of requests that wait for a job: no image stays in memory, where nothing counts it."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.types import Message

from service.routes.compat.endpoint import CompatibleRequestBody
from service.routes.compat.openai.image_admission import ImageOptions
from tests.service.compatible_requests import EXAMPLE_REQUESTS, IMAGE
from tests.service.standin import StandIn

MAX_CHARS = 20_000
"""Maximum size of what is kept of a body; the images have twice as many characters."""
NAMES = (
    "/v1/images/edits",
    "/v1/chat/completions",
    "/v1/responses",
    "/sdapi/v1/img2img",
    "/hf/{model} of an image",
    "/v1/predictions",
)


def noise() -> bytes:
    levels = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def request_of(name: str) -> tuple[str, bytes, str]:
    """Return the path, body and media type of a request with a large image."""
    example, data = EXAMPLE_REQUESTS[name], noise()
    if example.files:
        head = '--x\r\nContent-Disposition: form-data; name="{}"; filename="a"\r\n\r\n'
        parts = {"image": data, "prompt": b"a cat"}
        body = b"".join(head.format(key).encode() + parts[key] + b"\r\n" for key in parts)
        return example.path, body + b"--x--\r\n", "multipart/form-data; boundary=x"
    fields: Any = example.json
    if name == "/v1/responses":
        part = {"type": "input_image", "image_url": f"data:;base64,{IMAGE}"}
        text = {"type": "input_text", "text": "a cat"}
        fields = fields | {"input": [{"role": "user", "content": [text, part]}]}
    encoded = base64.b64encode(data).decode()
    return example.path, json.dumps(fields).replace(IMAGE, encoded).encode(), "application/json"


async def post(app: FastAPI, name: str) -> int:
    """Send a request without keeping its body; return the status of the response."""
    path, *rest, media_type = request_of(name)
    statuses: list[int] = []

    async def receive() -> Message:
        if not rest:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": rest.pop()}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = {"host": "localhost", "content-type": media_type, "prefer": "wait"}
    scope = {
        **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
        **{"headers": [(key.encode(), value.encode()) for key, value in headers.items()]},
        **{"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)},
    }
    await app(scope, receive, send)
    return statuses[0]


def large_bodies() -> list[object]:
    """Return the parsed requests in memory that have a large image."""
    bodies = [body for body in gc.get_objects() if isinstance(body, CompatibleRequestBody)]
    requests = [item for item in gc.get_objects() if isinstance(item, ImageOptions)]
    return [
        *(body for body in bodies if len(body.model_dump_json()) > MAX_CHARS),
        *(item for item in requests if any(map(len, item.files.values()))),
    ]


@pytest.mark.parametrize("name", NAMES)
async def test_no_image_is_kept_while_the_job_runs(app: FastAPI, pool: StandIn, name: str) -> None:
    pool.may_finish.clear()
    waiting = asyncio.create_task(post(app, name))
    claimed = asyncio.create_task(pool.has_claimed.wait())
    await asyncio.wait((waiting, claimed), return_when=asyncio.FIRST_COMPLETED)
    assert not waiting.done(), waiting.result()
    gc.collect()
    assert not large_bodies()
    pool.may_finish.set()
    assert await waiting in (200, 201)
