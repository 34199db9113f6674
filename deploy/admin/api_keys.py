"""`atelier keys`: make, list, revoke, export and import API keys in the Redis of the settings.

Without `redis.url` that is the embedded one of the state folder: of the `atelier up` that runs
there, or one that runs for the command alone.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TextIO

from pydantic import ValidationError
from redis.asyncio import Redis

from deploy.admin.acts import Act, at_redis, change_at_redis, recorded
from deploy.exit_codes import NotThere
from service.auth.api_keys import ApiKey, ApiKeys, Role
from service.jobs.redis import connection
from service.settings.settings import Settings
from service.settings.tenants import check_tenant

COLUMNS = ("ID", "TENANT", "CREATED", "NAME")
Made = tuple[ApiKey, str]
"""A new key, and its text."""


def create(settings: Settings, tenant: str, name: str, reason: str) -> None:
    """Print a new key on standard output, and what goes with it on standard error.

    Raises: ConfigError: Redis is not there. ValueError: no name for a tenant.
    """

    async def make(redis: Redis) -> Made:
        return await ApiKeys(redis).create(tenant, name)

    _create(settings, Act("create key", tenant, reason), make)


def create_operator(settings: Settings, name: str, reason: str) -> None:
    """Print a new key of an operator, as `create`. Raises: ConfigError: Redis is not there."""

    async def make(redis: Redis) -> Made:
        return await ApiKeys(redis).create_operator(name)

    _create(settings, Act("create operator's key", name, reason), make)


def _create(settings: Settings, act: Act, make: Callable[[Redis], Awaitable[Made]]) -> None:
    async def run(redis: Redis) -> Made:
        async with recorded(redis, act) as record:
            key, text = await make(redis)
            record.details["key"] = key.id
        return key, text

    key, text = at_redis(settings, run)
    print(text)
    whose = f"tenant {key.tenant}" if key.role is Role.TENANT else f"the operator {key.name}"
    said = f"key {key.id} of {whose}, for servers on {where(settings)}"
    print(f"{said}; it is not shown again", file=sys.stderr)


def _whose(key: ApiKey) -> str:
    """Return the tenant of a key, or that it is an operator's."""
    return key.tenant if key.role is Role.TENANT else f"({key.role})"


def show(settings: Settings) -> None:
    """Print all keys as a table, oldest first. Raises: ConfigError: Redis is not there."""
    found = at_redis(settings, lambda redis: ApiKeys(redis).all())
    rows = ((key.id, _whose(key), created(key.created_at), key.name) for key in found)
    print_table(COLUMNS, *rows)


def revoke(settings: Settings, key_id: str, reason: str) -> None:
    """Revoke a key. Raises: ConfigError: Redis is not there. NotThere: the key is not."""

    async def run(redis: Redis) -> None:
        if not await ApiKeys(redis).revoke(key_id):
            raise NotThere(f"there is no key {key_id!r}; `atelier keys list` shows all")

    change_at_redis(settings, Act("revoke key", key_id, reason), run)


def export(settings: Settings) -> None:
    """Print all keys, a JSON object a line: digests, no texts. Raises: ConfigError."""
    for key in at_redis(settings, lambda redis: ApiKeys(redis).all()):
        print(key.model_dump_json())


def take(settings: Settings, text: str, reason: str) -> None:
    """Add keys that `export` has printed.

    Raises:
        ConfigError: Redis is not there.
        ValueError: a line is no key, or another key has its id; then none was added.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    keys = [_exported(number, line) for number, line in enumerate(lines, 1)]
    act = Act("import keys", " ".join(key.id for key in keys), reason)
    added = change_at_redis(settings, act, lambda redis: ApiKeys(redis).take(keys))
    there = len({key.id for key in keys}) - added
    said = f"{added} keys added, {there} were there, for servers on {where(settings)}"
    print(said, file=sys.stderr)


def _exported(number: int, line: str) -> ApiKey:
    """Raises: ValueError: it is none."""
    try:
        key = ApiKey.model_validate_json(line)
        if key.role is Role.TENANT:
            check_tenant(key.tenant)
    except ValidationError:
        said = f"line {number} is no key as `atelier keys export` prints it"
        raise ValueError(said) from None
    return key


def print_table(*rows: tuple[str, ...], to: TextIO | None = None) -> None:
    """Columns as wide as they have to be, on standard output or in a text."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip(), file=to)


def created(at: float) -> str:
    """Return a key's time of creation, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def where(settings: Settings) -> str:
    """Return the address of Redis, or the state folder of the embedded one."""
    url = settings.redis.url
    return connection.shown(url) if url else str(settings.state_dir.resolve())
