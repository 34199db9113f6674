"""Fixtures of the real front end and the real queue. Only the worker is a stand-in."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.server import make_server
from service.settings.limits import LimitSettings
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.service.image_children import children
from tests.service.standin import StandIn


@pytest.fixture(scope="module", autouse=True)
def leaks_are_found() -> Iterator[None]:
    """Collect garbage after each module, so that a leaked resource fails the module that leaked it.

    `gc.freeze` excludes older objects, mostly imported modules, from each collection.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Fail a test after which a process that checks images still runs."""
    yield
    assert not children()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with limits that are small enough to exceed in a test."""
    return Settings(
        state_dir=tmp_path,
        limits=LimitSettings(max_body_bytes=200_000, max_image_pixels=100_000, max_wait_s=20),
        # errors have their status, however long a busy machine takes
        server=ServerSettings(keep_alive_s=0.2, json_keep_alive_s=0, models_age_s=0),
    )


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store_url)


@pytest.fixture
async def app(settings: Settings, queue: Queue, store: Store) -> AsyncIterator[FastAPI]:
    app = create_app(settings, queue, store)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client that calls the app in this process; each response arrives complete."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store) as pool:
        yield pool


@asynccontextmanager
async def served(app: FastAPI, settings: Settings) -> AsyncIterator[str]:
    """Serve the app by a real uvicorn on a free port of this machine; yield its URL."""
    server = make_server(app, settings)
    # `fileno=` detects the socket's protocol. Then asyncio sends each part of a response at once.
    with socket.socket(fileno=socket.create_server(("127.0.0.1", 0)).detach()) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@pytest.fixture
async def wire(settings: Settings, queue: Queue, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client that reaches the app through real sockets."""
    async with (
        served(create_app(settings, queue, store), settings) as address,
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http,
    ):
        yield http


@pytest.fixture
async def keys(redis_url: str, empty_redis: Redis) -> AsyncIterator[ApiKeys]:
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    yield keys
    await keys.close()
