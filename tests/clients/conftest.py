"""Real front end on a socket, with API keys and stand-in pools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.server import ServerSettings
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.standin import SPEC, VIDEO, StandIn
from tests.service.test_keys import with_keys


@pytest.fixture
def settings(tmp_path: Path, redis_url: str) -> Settings:
    settings = Settings(state_dir=tmp_path, server=ServerSettings(models_age_s=0))
    return with_keys(settings, redis_url)


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.store_url)


@pytest.fixture
async def pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, SPEC) as pool:
        yield pool


@pytest.fixture
async def video_pool(queue: Queue, store: Store) -> AsyncIterator[StandIn]:
    async with StandIn(queue, store, VIDEO) as pool:
        yield pool


@pytest.fixture
async def key(redis_url: str, queue: Queue) -> AsyncIterator[str]:
    """API key of the tenant `acme`."""
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    _, key = await keys.create("acme")
    yield key
    await keys.close()


@pytest.fixture
async def address(settings: Settings, queue: Queue, store: Store, key: str) -> AsyncIterator[str]:
    async with served(create_app(settings, queue, store), settings) as address:
        yield address
