"""`atelier keys`: make, list and revoke API keys in the Redis of the settings.

Without `redis.url` that is the embedded one of the state folder: of the `atelier up` that runs
there, or one that runs for the command alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TypeVar

from redis.asyncio import Redis

from deploy.local.embedded_redis import reached
from service.auth.api_keys import ApiKeys
from service.jobs.redis import connection
from service.settings.redis import RedisSettings
from service.settings.settings import Settings

T = TypeVar("T")

COLUMNS = ("ID", "TENANT", "CREATED", "NAME")


def create(settings: Settings, tenant: str, name: str) -> None:
    """Print a new key on standard output, and what goes with it on standard error.

    Raises: ConfigError: Redis is not there. ValueError: no name for a tenant.
    """
    key, text = at_redis(settings, lambda redis: ApiKeys(redis).create(tenant, name))
    print(text)
    said = f"key {key.id} of tenant {tenant}, for servers on {where(settings)}"
    print(f"{said}; it is not shown again", file=sys.stderr)


def show(settings: Settings) -> None:
    """Print all keys as a table, oldest first. Raises: ConfigError: Redis is not there."""
    found = at_redis(settings, lambda redis: ApiKeys(redis).all())
    rows = ((key.id, key.tenant, created(key.created_at), key.name) for key in found)
    print_table(COLUMNS, *rows)


def revoke(settings: Settings, key_id: str) -> bool:
    """Revoke a key; return whether there was one. Raises: ConfigError: Redis is not there."""
    return at_redis(settings, lambda redis: ApiKeys(redis).revoke(key_id))


def print_table(*rows: tuple[str, ...]) -> None:
    """Columns as wide as they have to be."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def created(at: float) -> str:
    """Return a key's time of creation, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def where(settings: Settings) -> str:
    """Return the address of Redis, or the state folder of the embedded one."""
    url = settings.redis.url
    return connection.shown(url) if url else str(settings.state_dir.resolve())


def at_redis(settings: Settings, act: Callable[[Redis], Awaitable[T]]) -> T:
    """Run an act at the Redis of the settings. Raises: ConfigError: it is not there."""
    with ExitStack() as stack:
        redis = settings.redis
        if redis.url is None:
            url = stack.enter_context(reached(settings.state_dir))
            redis = redis.model_copy(update={"url": url})
        return asyncio.run(_act(redis, act))


async def _act(settings: RedisSettings, act: Callable[[Redis], Awaitable[T]]) -> T:
    redis = await connection.connect(settings)
    try:
        return await act(redis)
    finally:
        await redis.aclose()
