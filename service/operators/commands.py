"""Acts that reach the audit log by way of Redis: of commands there, and of the service by itself.

A command cannot know whether the store of its settings is the installation's, and must not fail
where that is away. So it leaves its record beside what it changes, and any front end brings it to
the store. Nothing takes an order: a record is written under one key whoever does it, and one that
tells how an act went is never replaced. What front ends do by themselves, such as an alias's step
back, comes the same way: its record is written in the transaction that does it.
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
LONGEST = timedelta(minutes=10)
"""Time after which a command that has not told how its act went has died."""

log = logging.getLogger("atelier")


def operator_of_process() -> Operator:
    """Return who runs this process: the user by the operating system, not by its environment."""
    host, number = socket.gethostname(), os.getuid()
    try:
        user = pwd.getpwuid(number).pw_name
    except KeyError:  # of a container
        user = f"uid {number}"
    return Operator("", f"{user}@{host}", COMMAND_LINE + host)


class CommandActs:
    """Records in Redis, which no front end has stored yet."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def add(self, record: AuditRecord) -> None:
        """Leave a record for the front ends. Raises: RedisError, OSError."""
        await self._redis.hset(keys.AUDIT, record.field, record.model_dump_json())

    async def all(self) -> list[AuditRecord]:
        """Return all records; what nobody can have left so is dropped."""
        found = cast(dict[str, str], await self._redis.hgetall(keys.AUDIT))
        records = {field: _parsed(field, text) for field, text in found.items()}
        if wrong := [field for field, record in records.items() if record is None]:
            log.warning("dropped what is no act from %s: %r", keys.AUDIT, wrong)
            await self._redis.hdel(keys.AUDIT, *wrong)
        return [record for record in records.values() if record]

    async def remove(self, record: AuditRecord) -> None:
        """Drop a record, and the one that it replaces."""
        begun = record.model_copy(update={"outcome": "begun"})
        await self._redis.hdel(keys.AUDIT, begun.field, record.field)


def _parsed(field: str, text: str) -> AuditRecord | None:
    """Parse a record; None: it is none of these. That of a key goes to the store at once."""
    try:
        record = AuditRecord.model_validate_json(text)
    except ValidationError:
        return None
    is_keyless = not record.key_id and record.address.startswith((COMMAND_LINE, FRONT_END))
    return record if is_keyless and field == record.field else None


async def acts_of_day(redis: Redis, store: Store, day: date) -> list[AuditRecord]:
    """Return the records of a day (UTC), also those on their way, oldest first.

    Raises: RedisError, StoreError.
    """
    waiting = [one for one in await CommandActs(redis).all() if one.at.date() == day]
    records: dict[str, AuditRecord] = {}
    for record in [*waiting, *await AuditLog(store).of_day(day)]:
        if record.id not in records or record.outcome != "begun":
            records[record.id] = record
    return sorted(records.values(), key=lambda record: (record.at, record.id))


async def move_acts(redis: Redis, store: Store) -> None:
    """Bring the records of commands to the store. Raises: RedisError, OSError, StoreError."""
    acts, audit = CommandActs(redis), AuditLog(store)
    for record in await acts.all():
        if record.outcome == "begun" and datetime.now(UTC) - record.at < LONGEST:
            continue
        await audit.add(record)
        await acts.remove(record)
        log.info("%s: %s by %s", record.act, record.target, record.name)


async def move_forever(front: FrontEnd) -> None:
    """Move records every `reap_every_s`; what fails, a later round does, of any front end."""
    while True:
        try:
            await move_acts(front.queue.redis, front.store)
        except (RedisError, OSError, StoreError) as error:
            log.warning("could not store acts of commands for the audit log: %s", error)
        await asyncio.sleep(front.settings.queue.reap_every_s)
