"""The real front end over the real queue; only the pool is a stand-in."""

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

from service.app import create_app
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
    """Collect garbage at a module's end: what it left open fails it and no later one.

    What was there before, most of it imported, is not looked through again and again.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Whoever checks images ends its processes."""
    yield
    assert not children()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Small limits, so that the tests can reach them."""
    return Settings(
        state_dir=tmp_path,
        limits=LimitSettings(max_body_bytes=200_000, max_image_pixels=100_000, max_wait_s=20),
        server=ServerSettings(keep_alive_s=0.2, models_age_s=0),
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
    """A client that calls the app in this process; answers come whole."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store) as pool:
        yield pool


@asynccontextmanager
async def served(app: FastAPI, settings: Settings) -> AsyncIterator[str]:
    """The app behind a real uvicorn on a free port of this machine: its address."""
    server = make_server(app, settings)
    # Made from a number, it knows its protocol: asyncio sends parts of answers at once then.
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
    """A client that reaches the app through real sockets."""
    async with (
        served(create_app(settings, queue, store), settings) as address,
        httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as http,
    ):
        yield http
