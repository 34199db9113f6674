"""Responses that contain large files as base64."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.jobs.model.job import Output
from service.jobs.queue import Claim, Queue
from service.jobs.storage.object_store import Store
from service.responses.json_content import LARGE_BYTES
from tests.service.standin import MODEL, StandIn

CAT = {"model": MODEL, "prompt": "a cat"}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/images/generations": CAT,
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "a cat"}]},
    "/v1/responses": {
        **{"model": MODEL, "input": "a cat"},
        "tools": [{"type": "image_generation"}],
    },
    "/sdapi/v1/txt2img": {"prompt": "a cat"},
    "/v1/generate": {**CAT, "output": {"inline": True}},
}


class LargeOutputs(StandIn):
    """Stand-in worker whose outputs are large."""

    async def _output(self, claim: Claim, index: int) -> Output:
        output = await super()._output(claim, index)
        data = os.urandom(LARGE_BYTES)
        await self.store.put(output.key, data, output.content_type)
        digest = hashlib.sha256(data).hexdigest()
        return output.model_copy(update={"bytes": LARGE_BYTES, "sha256": digest})


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with LargeOutputs(queue, store) as pool:
        yield pool


@pytest.mark.parametrize("path", REQUESTS)
async def test_large_files_are_encoded_in_another_thread(
    path: str, http: httpx.AsyncClient, pool: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    encode = base64.b64encode

    def record_thread(data: bytes) -> bytes:
        if len(data) >= LARGE_BYTES:
            threads.append(threading.current_thread())
        return encode(data)

    monkeypatch.setattr(base64, "b64encode", record_thread)
    response = await http.post(path, json=REQUESTS[path], headers={"Prefer": "wait"})
    assert response.status_code == 200, response.text[:500]
    assert len(response.content) > LARGE_BYTES
    assert threads and threading.main_thread() not in threads
