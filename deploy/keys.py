"""`atelier keys`: make, list and revoke API keys in the Redis of the settings.

Without `redis.url` that is the embedded one of the state folder: of the `atelier up` that runs
there, or one that runs for the command alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TypeVar

from deploy.redis import reached
from service.api_keys import ApiKey, ApiKeys
from service.jobs import connection
from service.settings import RedisSettings, Settings

T = TypeVar("T")

COLUMNS = ("ID", "TENANT", "CREATED", "NAME")


def create(settings: Settings, tenant: str, name: str) -> None:
    """Print a new key on standard output, and what goes with it on standard error.

    Raises: ConfigError: Redis is not there. ValueError: no name for a tenant.
    """
    key, text = _with_keys(settings, lambda keys: keys.create(tenant, name))
    print(text)
    url = settings.redis.url
    where = connection.shown(url) if url else settings.state_dir.resolve()
    said = f"key {key.id} of tenant {tenant}, for servers on {where}; it is not shown again"
    print(said, file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all keys as a table, oldest first. Raises: ConfigError: Redis is not there."""
    rows = [COLUMNS, *(_row(key) for key in _with_keys(settings, ApiKeys.all))]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def revoke(settings: Settings, key_id: str) -> bool:
    """Whether there was such a key. Raises: ConfigError: Redis is not there."""
    return _with_keys(settings, lambda keys: keys.revoke(key_id))


def _row(key: ApiKey) -> tuple[str, ...]:
    created = datetime.fromtimestamp(key.created_at, UTC).isoformat(timespec="seconds")
    return key.id, key.tenant, created, key.name


def _with_keys(settings: Settings, act: Callable[[ApiKeys], Awaitable[T]]) -> T:
    with ExitStack() as stack:
        redis = settings.redis
        if redis.url is None:
            url = stack.enter_context(reached(settings.state_dir))
            redis = redis.model_copy(update={"url": url})
        return asyncio.run(_act(redis, act))


async def _act(redis: RedisSettings, act: Callable[[ApiKeys], Awaitable[T]]) -> T:
    async with _open(redis) as keys:
        return await act(keys)


@asynccontextmanager
async def _open(redis: RedisSettings) -> AsyncIterator[ApiKeys]:
    keys = ApiKeys(await connection.connect(redis))
    try:
        yield keys
    finally:
        await keys.close()
