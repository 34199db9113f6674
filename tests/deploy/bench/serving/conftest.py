"""Front end on its own port that tests can stop and restart, with a stand-in pool."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.server import HttpServer, make_server
from service.settings.settings import Settings
from tests.service.standin import StandIn


class FrontEnd:
    """Front end with real sockets, routes and queue."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue, self._settings = queue, settings
        self._port = 0
        self.server: HttpServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self.server.server_state.connections) if self.server else 0

    async def start(self, **changes: object) -> None:
        """Start on the previous port, if any. Args: changes: of the settings."""
        self._settings = self._settings.model_copy(update=changes)
        app = create_app(self._settings, self._queue, Store(self._settings.store_url))
        self.server = make_server(app, self._settings)
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self.server.serve(sockets=[listener]))
        while not self.server.started:
            assert not self._task.done(), self._task
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self.server:
            self.server.should_exit, self.server = True, None
            await self._task


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
async def front(queue: Queue, settings: Settings) -> AsyncIterator[FrontEnd]:
    front = FrontEnd(queue, settings)
    await front.start()
    yield front
    await front.stop()


@pytest.fixture
async def pool(queue: Queue, settings: Settings) -> AsyncIterator[StandIn]:
    async with StandIn(queue, Store(settings.store_url)) as pool:
        yield pool
