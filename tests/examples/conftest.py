"""Real front end on a real socket with a stand-in pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.standin import StandIn


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, server=ServerSettings(models_age_s=0))


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store_url)


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store) as pool:
        yield pool


@pytest.fixture
async def address(
    settings: Settings, queue: Queue, store: Store, pool: StandIn
) -> AsyncIterator[str]:
    """Address of a server with the stand-in's model."""
    async with served(create_app(settings, queue, store), settings) as address:
        yield address
