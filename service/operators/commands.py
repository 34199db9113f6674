"""Audit records that pass through Redis: of commands that change Redis, and of automatic actions.

A command cannot verify that its settings' store is the installation's, and must work without it. So
it writes the record to Redis next to its change, and any front end moves it to the store. Order and
repetition do not matter: a record always has the same key, and a final outcome is never replaced.
Automatic acts, such as withdrawing an alias's version, write their record in the same transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
from datetime import UTC, date, datetime, timedelta
from typing import cast

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.front_end.front_end import FrontEnd
from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.operators.audit import AuditLog, Operator
from service.schemas.audit import FRONT_END, AuditRecord

COMMAND_LINE = "command line at "
CRASH_TIMEOUT = timedelta(minutes=10)
"""Time after which a command that recorded no outcome has crashed."""

log = logging.getLogger("atelier")


def operator_of_process() -> Operator:
    """Identify the operating system user of this process, ignoring environment variables."""
    host, number = socket.gethostname(), os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:  # in a container
        user = f"uid {number}"
    return Operator("", f"{user}@{host}", COMMAND_LINE + host)


class CommandActs:
    """Audit records of commands in Redis that no front end has stored yet."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def add(self, record: AuditRecord) -> None:
        """Add an audit record to Redis. Raises: RedisError, OSError."""
        await self._redis.hset(keys.AUDIT, record.field, record.model_dump_json())

    async def all(self) -> list[AuditRecord]:
        """Return all audit records in Redis, dropping invalid ones."""
        texts = cast(dict[str, str], await self._redis.hgetall(keys.AUDIT))
        records = {field: _parsed(field, text) for field, text in texts.items()}
        if wrong := [field for field, record in records.items() if record is None]:
            log.warning("dropped an invalid record from %s: %r", keys.AUDIT, wrong)
            await self._redis.hdel(keys.AUDIT, *wrong)
        return [record for record in records.values() if record]

    async def remove(self, record: AuditRecord) -> None:
        """Delete an audit record in Redis, and its earlier `begun` version."""
        begun = record.model_copy(update={"outcome": "begun"})
        await self._redis.hdel(keys.AUDIT, begun.field, record.field)


def _parsed(field: str, text: str) -> AuditRecord | None:
    """Parse an audit record from Redis; None: invalid.

    Acts with an API key are stored directly, so they are invalid here.
    """
    try:
        record = AuditRecord.model_validate_json(text)
    except ValidationError:
        return None
    is_keyless = not record.key_id and record.address.startswith((COMMAND_LINE, FRONT_END))
    return record if is_keyless and field == record.field else None


async def acts_of_day(redis: Redis, store: Store, day: date) -> list[AuditRecord]:
    """List the audit records of a day (UTC), including those still in Redis, oldest first.

    Raises: RedisError, StoreError.
    """
    waiting = [act for act in await CommandActs(redis).all() if act.at.date() == day]
    records: dict[str, AuditRecord] = {}
    for record in [*waiting, *await AuditLog(store).of_day(day)]:
        if record.id not in records or record.outcome != "begun":
            records[record.id] = record
    return sorted(records.values(), key=lambda record: (record.at, record.id))


async def move_acts(redis: Redis, store: Store) -> None:
    """Move the audit records of commands to the store. Raises: RedisError, OSError, StoreError."""
    acts, audit = CommandActs(redis), AuditLog(store)
    for record in await acts.all():
        if record.outcome == "begun" and datetime.now(UTC) - record.at < CRASH_TIMEOUT:
            continue
        await audit.add(record)
        await acts.remove(record)
        log.info("%s: %s by %s", record.act, record.target, record.name)


async def move_forever(front: FrontEnd) -> None:
    """Move audit records from Redis to the store every `reap_every_s`, with retries."""
    while True:
        try:
            await move_acts(front.queue.redis, front.store)
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not store acts of commands for the audit log: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)
