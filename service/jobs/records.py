"""Records of operators: data in Redis, changed while everything runs, seen within moments.

All records of a kind lie in one hash, beside the number of their changes.
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
    """Records of one kind, by name.

    Args:
        hash_key: hash of the records.
        changes_key: number of their changes.
        parse: reads a record's JSON.
        check: raises ValueError for a name that a new record cannot have.
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
        """Return how often records were changed."""
        return int(await self._redis.get(self._changes_key) or 0)

    async def all(self) -> dict[str, T]:
        """Return all records by name."""
        return self._parsed(cast(dict[str, str], await self._redis.hgetall(self._hash_key)))

    async def change(
        self,
        act: Callable[[dict[str, T]], Mapping[str, T]],
        beside: Callable[[Any], object] | None = None,
    ) -> dict[str, T]:
        """Replace the records by what `act` makes of them, at once; return these.

        Args:
            act: is called anew where somebody else has changed records meanwhile.
            beside: adds commands to the same transaction, after `act`.

        Raises: ValueError: a record can't be called so; what `act` raises.
        """

        async def replace(pipe: Any) -> dict[str, T]:
            before = self._parsed(await pipe.hgetall(self._hash_key))
            after = dict(act(dict(before)))
            for name in after:
                self._check(name)
            pipe.multi()
            if gone := before.keys() - after.keys():
                pipe.hdel(self._hash_key, *gone)
            if new := {name: one for name, one in after.items() if before.get(name) != one}:
                texts = {name: one.model_dump_json(exclude_unset=True) for name, one in new.items()}
                pipe.hset(self._hash_key, mapping=texts)
            pipe.incr(self._changes_key)
            if beside:
                beside(pipe)
            return after

        transaction = self._redis.transaction(replace, self._hash_key, value_from_callable=True)
        return cast(dict[str, T], await transaction)

    def _parsed(self, found: Mapping[str, str]) -> dict[str, T]:
        return {name: self._parse(text) for name, text in found.items()}


class RecordCopies(Generic[T]):
    """Records as a process knows them, read again when its copy is older than `max_age_s`.

    Args:
        configured: records that those in Redis stand before.
    """

    def __init__(self, records: Records[T], configured: Mapping[str, T], max_age_s: float) -> None:
        self._records = records
        self._configured = dict(configured)
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self.known: dict[str, T] = self._configured
        """Records as they were last read."""
        self._changes: int | None = None
        self._read_at = -float("inf")

    async def all(self) -> dict[str, T]:
        """Return all records. Raises: redis.exceptions.RedisError."""
        if self._is_old():
            async with self._lock:
                if self._is_old():
                    await self._read()
        return self.known

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at >= self._max_age_s

    async def _read(self) -> None:
        read_at = time.monotonic()
        changes = await self._records.changes()  # first: what comes between is read again
        if changes != self._changes:
            self.known = self._configured | await self._records.all()
            self._changes = changes
        self._read_at = read_at
