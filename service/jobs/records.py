"""Records of operators in Redis: data that changes at run time and takes effect within seconds.

All records of one kind are in one hash; a counter of their changes is next to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel
from redis.asyncio import Redis

T = TypeVar("T", bound=BaseModel)


class Records(Generic[T]):
    """Records of one kind (aliases, tenants) in Redis, by name.

    Args:
        hash_key: hash of the records.
        changes_key: counter of their changes.
        parse: parses a record's JSON.
        check: raises ValueError for an invalid name of a new record.
    """

    def __init__(
        self,
        redis: Redis,
        hash_key: str,
        changes_key: str,
        parse: Callable[[str], T],
        check: Callable[[str], None],
    ) -> None:
        self._redis = redis
        self._hash_key = hash_key
        self._changes_key = changes_key
        self._parse = parse
        self._check = check

    async def changes(self) -> int:
        """Return how often records of this kind were changed, to detect outdated copies."""
        return int(await self._redis.get(self._changes_key) or 0)

    async def all(self) -> dict[str, T]:
        """Return all records of this kind by name."""
        return self._parsed(cast(dict[str, str], await self._redis.hgetall(self._hash_key)))

    async def change(
        self,
        act: Callable[[dict[str, T]], Mapping[str, T]],
        add_commands: Callable[[Any], object] | None = None,
    ) -> dict[str, T]:
        """Replace all records by the result of `act` in one Redis transaction; return the result.

        Args:
            act: computes the new records; called again if the records changed meanwhile.
            add_commands: adds commands to the same transaction, after `act`.

        Raises: ValueError: a record's name is invalid; also the errors of `act`.
        """

        async def replace(pipe: Any) -> dict[str, T]:
            before = self._parsed(await pipe.hgetall(self._hash_key))
            after = dict(act(dict(before)))
            for name in after:
                self._check(name)
            pipe.multi()
            if gone := before.keys() - after.keys():
                pipe.hdel(self._hash_key, *gone)
            if new := {
                name: record for name, record in after.items() if before.get(name) != record
            }:
                texts = {
                    name: record.model_dump_json(exclude_unset=True) for name, record in new.items()
                }
                pipe.hset(self._hash_key, mapping=texts)
            pipe.incr(self._changes_key)
            if add_commands:
                add_commands(pipe)
            return after

        transaction = self._redis.transaction(replace, self._hash_key, value_from_callable=True)
        return cast(dict[str, T], await transaction)

    def _parsed(self, texts: Mapping[str, str]) -> dict[str, T]:
        return {name: self._parse(text) for name, text in texts.items()}


class RecordCopies(Generic[T]):
    """Cached copy of records in one process, refreshed when it is older than `max_age_s`.

    Args:
        configured: records of the settings, which records in Redis override.
    """

    def __init__(self, records: Records[T], configured: Mapping[str, T], max_age_s: float) -> None:
        self._records = records
        self._configured = dict(configured)
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self.cached: dict[str, T] = self._configured
        """Records as of the last refresh."""
        self._changes: int | None = None
        self._read_at = -float("inf")

    async def all(self) -> dict[str, T]:
        """Return all records, reread if the copy is old. Raises: redis.exceptions.RedisError."""
        if self._is_old():
            async with self._lock:
                if self._is_old():
                    await self._read()
        return self.cached

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= self._max_age_s

    async def _read(self) -> None:
        read_at = time.monotonic()
        changes = await self._records.changes()  # read first: later changes cause another refresh
        if changes != self._changes:
            self.cached = self._configured | await self._records.all()
            self._changes = changes
        self._read_at = read_at
