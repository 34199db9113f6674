"""`atelier keys`: create, list, revoke, export and import API keys in the Redis of the settings.

Without `redis.url` it uses the state folder's embedded Redis: that of a running `atelier up`, or
one started for the command.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TextIO

from pydantic import ValidationError
from redis.asyncio import Redis

from deploy.admin.audited_actions import Act, at_redis, change_at_redis, recorded
from deploy.exit_codes import NotFound
from service.auth.api_keys import ApiKey, ApiKeys, Role
from service.jobs.redis import connection
from service.settings.settings import Settings
from service.settings.tenants import check_tenant

COLUMNS = ("ID", "TENANT", "CREATED", "NAME")
CreatedKey = tuple[ApiKey, str]
"""A new key, and its text."""


def create(settings: Settings, tenant: str, name: str, reason: str) -> None:
    """Print a new tenant key on standard output, and its description on standard error.

    Raises: ConfigError: Redis is unreachable. ValueError: invalid tenant name.
    """

    async def make(redis: Redis) -> CreatedKey:
        return await ApiKeys(redis).create(tenant, name)

    _create(settings, Act("create key", tenant, reason), make)


def create_operator(settings: Settings, name: str, reason: str) -> None:
    """Print a new operator key, as `create`. Raises: ConfigError: Redis is unreachable."""

    async def make(redis: Redis) -> CreatedKey:
        return await ApiKeys(redis).create_operator(name)

    _create(settings, Act("create operator's key", name, reason), make)


def _create(settings: Settings, act: Act, make: Callable[[Redis], Awaitable[CreatedKey]]) -> None:
    async def run(redis: Redis) -> CreatedKey:
        async with recorded(redis, act) as record:
            key, text = await make(redis)
            record.details["key"] = key.id
        return key, text

    key, text = at_redis(settings, run)
    print(text)
    whose = f"tenant {key.tenant}" if key.role is Role.TENANT else f"the operator {key.name}"
    message = f"key {key.id} of {whose}, for servers on {where(settings)}"
    print(f"{message}; it is not shown again", file=sys.stderr)


def _whose(key: ApiKey) -> str:
    """Return the tenant of a key, or the role of an operator's key."""
    return key.tenant if key.role is Role.TENANT else f"({key.role})"


def show(settings: Settings) -> None:
    """Print all keys as a table, oldest first. Raises: ConfigError: Redis is unreachable."""
    keys = at_redis(settings, lambda redis: ApiKeys(redis).all())
    rows = ((key.id, _whose(key), created(key.created_at), key.name) for key in keys)
    print_table(COLUMNS, *rows)


def revoke(settings: Settings, key_id: str, reason: str) -> None:
    """Revoke an API key. Raises: ConfigError: Redis is unreachable. NotFound: no such key."""

    async def run(redis: Redis) -> None:
        if not await ApiKeys(redis).revoke(key_id):
            raise NotFound(f"there is no key {key_id!r}; `atelier keys list` shows all")

    change_at_redis(settings, Act("revoke key", key_id, reason), run)


def export(settings: Settings) -> None:
    """Print all keys as JSON lines, with digests instead of texts. Raises: ConfigError."""
    for key in at_redis(settings, lambda redis: ApiKeys(redis).all()):
        print(key.model_dump_json())


def import_records(settings: Settings, text: str, reason: str) -> None:
    """Import API keys printed by `export`.

    Raises:
        ConfigError: Redis is unreachable.
        ValueError: a line is invalid, or another key has its id; then none is imported.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    keys = [_parsed_line(number, line) for number, line in enumerate(lines, 1)]
    act = Act("import keys", " ".join(key.id for key in keys), reason)
    added = change_at_redis(settings, act, lambda redis: ApiKeys(redis).take(keys))
    existing = len({key.id for key in keys}) - added
    message = f"{added} keys added, {existing} existed already, for servers on {where(settings)}"
    print(message, file=sys.stderr)


def _parsed_line(number: int, line: str) -> ApiKey:
    """Parse a line of `atelier keys export`. Raises: ValueError."""
    try:
        key = ApiKey.model_validate_json(line)
        if key.role is Role.TENANT:
            check_tenant(key.tenant)
    except ValidationError:
        message = f"line {number} is not a key in the format of `atelier keys export`"
        raise ValueError(message) from None
    return key


def print_table(*rows: tuple[str, ...], to: TextIO | None = None) -> None:
    """Print rows with aligned columns, to standard output or `to`."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip(), file=to)


def created(at: float) -> str:
    """Format the creation time of a key, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def where(settings: Settings) -> str:
    """Return the address of Redis, or the state folder of the embedded one."""
    url = settings.redis.url
    return connection.redacted(url) if url else str(settings.state_dir.resolve())
