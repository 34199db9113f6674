"""Hostile images over real sockets: they delay only their own tenant."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from models.media.image_files import MAX_SCANS
from service.auth.api_keys import ApiKeys
from service.settings.limits import LimitSettings
from service.settings.settings import Settings
from tests.hostile_images import jpeg_of_scans
from tests.service.conftest import served
from tests.service.eventually import eventually
from tests.service.harmless import harmless
from tests.service.image_children import children
from tests.service.standin import MODEL, StandIn, picture
from tests.service.test_keys import bearer, with_keys

HEALTHY_S = 0.25
"""Limit of this process's time, clients included, until /healthz responds."""
ATTACKS = 6


@pytest.fixture
def settings(settings: Settings, redis_url: str) -> Settings:
    limits = LimitSettings(max_image_pixels=10_000_000)
    return with_keys(settings, redis_url).model_copy(update={"limits": limits})


def asking(data: bytes) -> dict[str, str]:
    return {
        "prompt": "a cat",
        "model": MODEL,
        "image": base64.b64encode(data).decode(),
    }


@pytest.fixture
async def address(app: FastAPI, settings: Settings, pool: StandIn) -> AsyncIterator[str]:
    async with served(app, settings) as address:
        yield address


async def client(address: str, keys: ApiKeys, tenant: str) -> httpx.AsyncClient:
    _, key = await keys.create(tenant)
    return httpx.AsyncClient(base_url=address, headers=bearer(key), timeout=60, trust_env=False)


async def test_slow_images_delay_only_their_tenant(
    app: FastAPI, address: str, keys: ApiKeys, empty_redis: Redis
) -> None:
    """Images of ten million pixels with the most scans allowed: each takes its share of a
    processor.

    The process that decodes the first image is stopped until the other requests are served.
    """
    good, slow = asking(picture()), asking(jpeg_of_scans(MAX_SCANS, (3150, 3150)))
    async with (
        await client(address, keys, "acme") as acme,
        await client(address, keys, "zoo") as z,
        harmless(z),
    ):
        assert (await acme.post("/v1/generate", json=good)).status_code == 202
        (stopped,) = children()
        os.kill(stopped, signal.SIGSTOP)
        attack = [asyncio.create_task(acme.post("/v1/generate", json=slow)) for _ in range(ATTACKS)]
        await eventually(lambda: is_checking(app, "acme"))
        for _ in range(2):
            assert (await z.post("/v1/generate", json=good)).status_code == 202
        assert not any(task.done() for task in attack)
        os.kill(stopped, signal.SIGCONT)
        assert median([await healthz_cpu_s(z) for _ in range(7)]) < HEALTHY_S
        assert {(await task).status_code for task in attack} <= {202, 422}


async def test_disconnected_client_frees_its_image_check_slot(
    app: FastAPI, address: str, keys: ApiKeys, empty_redis: Redis
) -> None:
    async def is_killed() -> bool:
        return stopped not in children()

    async with (
        await client(address, keys, "acme") as acme,
        await client(address, keys, "zoo") as z,
        harmless(z),
    ):
        good = asking(picture())
        assert (await acme.post("/v1/generate", json=good)).status_code == 202
        (stopped,) = children()
        os.kill(stopped, signal.SIGSTOP)
        async with asking_by_hand(address, acme.headers["Authorization"], good):
            await eventually(lambda: is_checking(app, "acme"))
        await eventually(is_killed)
        assert (await acme.post("/v1/generate", json=good)).status_code == 202


@asynccontextmanager
async def asking_by_hand(address: str, key: str, body: Mapping[str, Any]) -> AsyncIterator[None]:
    """Send a complete request, and close the connection at exit without reading the response."""
    url, content = httpx.URL(address), json.dumps(body).encode()
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = (
        f"POST /v1/generate HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    yield
    writer.close()
    await writer.wait_closed()


async def is_checking(app: FastAPI, tenant: str) -> bool:
    return bool(app.state.front.images.slots.tenants[tenant])


async def healthz_cpu_s(http: httpx.AsyncClient) -> float:
    """Processor time of this process until /healthz responds."""
    began = time.process_time()
    assert (await http.get("/healthz")).status_code == 200
    return time.process_time() - began
