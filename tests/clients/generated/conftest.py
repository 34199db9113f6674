"""Real front end that requires API keys, and programs that call it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.standin import StandIn
from tests.service.test_keys import with_keys

TENANT = "acme"
Run = Callable[..., Coroutine[Any, Any, str]]
"""Function that runs a command in the test's folder and returns its output."""


@pytest.fixture
async def run(
    tmp_path: Path, redis_url: str, empty_redis: Redis, queue: Queue
) -> AsyncIterator[Run]:
    settings = with_keys(Settings(state_dir=tmp_path / "state"), redis_url)
    store = Store(settings.store_url)
    keys = ApiKeys(Redis.from_url(redis_url, decode_responses=True))
    _, key = await keys.create(TENANT)
    app = create_app(settings, queue, store)
    async with served(app, settings) as address, StandIn(queue, store):
        variables = {"ATELIER_SERVER": address, "ATELIER_KEY": key}
        yield lambda *command: _run(tmp_path, variables, *command)
    await keys.close()


async def _run(folder: Path, variables: dict[str, str], *command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()
