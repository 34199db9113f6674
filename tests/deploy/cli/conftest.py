"""Fixture that runs commands against a real front end in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import atelier
from service.app import create_app
from service.jobs.queue import Queue
from service.jobs.storage.object_store import Store
from service.settings.settings import Settings
from tests.service.conftest import served

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
async def run(
    settings: Settings, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Run]:
    """Runs a command against the server; returns its exit code, stdout and stderr."""
    store = Store(settings.store_url)
    async with served(create_app(settings, queue, store), settings) as address:

        async def run(*arguments: object) -> tuple[int, str, str]:
            words = [*map(str, arguments), "--server", address]
            code = await asyncio.to_thread(atelier.main, words)
            return code, *capsys.readouterr()

        yield run
