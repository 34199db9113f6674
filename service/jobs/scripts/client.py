"""Base class of the queue's client: its connections, and calls of scripts.

A script gets one key, the prefix of all keys. Its arguments are one JSON object `args` by name.
Longer texts follow as plain strings (`texts`), which no script has to parse.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from service.jobs.model.errors import QuotaExceeded
from service.jobs.model.metrics import JobMetrics
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.redis import connection
from service.jobs.redis.keys import CONFIRMED, PREFIX
from service.jobs.redis.pubsub import Subscriber
from service.jobs.scripts.composition import digest, source
from service.jobs.scripts.script import Answer, Common, Script
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings

ANSWER_MS = 60_000
"""Lifetime of a stored answer for a repeated call. It exceeds the time for which a client
retries."""
_ARGS = json.JSONEncoder(default=asdict)


class Unconfirmed(RedisError):
    """Error: too few replicas have confirmed a script's writes, so a failover may lose them."""


@dataclass(frozen=True)
class ReadQuota(Script[QuotaUsage]):
    """Script call that reads a tenant's usage of its quotas."""

    tenant: str
    device_seconds_per_hour: float | None
    retention_s: float

    @staticmethod
    def parse(answer: Sequence[str | int]) -> QuotaUsage:
        """Return the tenant's usage of its quotas."""
        return QuotaUsage.parse(answer)


class QueueClient:
    """Base of the queue's parts. Owns its connections: `close` ends them and all iterators.

    The parts have methods for common reads, and for calls that use settings, convert values, count
    metrics or wait. Other scripts are run where they are needed: `await queue.run(ReadTotals())`.
    """

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        self._redis = redis
        self._settings = settings
        self._common = asdict(Common(settings.max_events, settings.priority_advance_s))
        self._subscriber = Subscriber(redis)
        self.job_metrics = JobMetrics(CollectorRegistry())
        """Metrics of this queue's calls. Replace it with an instance that your `/metrics` endpoint
        exports."""

    @classmethod
    async def connect(cls, url: str, settings: QueueSettings) -> Self:
        """Connect to the queue at an address.

        Raises: ConfigError: Redis cannot be reached, is too old, or may evict keys.
        """
        return cls(await connection.connect(RedisSettings(url=url)), settings)

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Connect to the queue of these settings. Raises: ConfigError: as `connect`."""
        return cls(await connection.connect(settings.redis), settings.queue)

    @property
    def redis(self) -> Redis:
        """Redis client of the queue, for front ends' other data there."""
        return self._redis

    @classmethod
    async def open_when_reached(cls, settings: Settings, note: Callable[[str], None]) -> Self:
        """Connect to the queue, and wait for a server that does not answer. Raises: ConfigError."""
        queue = cls.unchecked(settings)
        try:
            await queue.check_when_reached(settings, note)
        except BaseException:
            await queue.close()
            raise
        return queue

    @classmethod
    def unchecked(cls, settings: Settings) -> Self:
        """Create a queue client without connecting.

        Raises: ConfigError: the settings have no address.
        """
        return cls(connection.client(settings.redis), settings.queue)

    async def check(self, settings: Settings) -> None:
        """Check that the Redis server can be used for the queue.

        Raises: RedisUnreachable, ConfigError: as `connection.check`.
        """
        await connection.check(self._redis, settings.redis)

    async def check_when_reached(
        self, settings: Settings, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until the Redis server answers, and check it.

        Raises: ConfigError: as `connection.check_when_reached`.
        """
        await connection.check_when_reached(self._redis, settings.redis, note)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._subscriber.close()
        await self._redis.aclose()

    async def quota_usage(self, tenant: str, limits: TenantSettings) -> QuotaUsage:
        """Return a tenant's usage of its quotas."""
        quota = limits.device_seconds_per_hour
        return await self.run(ReadQuota(tenant, quota, self._settings.retention_s))

    async def storage_quota_exceeded(self, tenant: str, limits: TenantSettings) -> QuotaExceeded:
        """Return the exception for exceeding the tenant's quota of stored bytes."""
        return QuotaExceeded("stored-bytes", await self.quota_usage(tenant, limits))

    async def ping(self) -> None:
        """Check that Redis answers.

        Raises: redis.exceptions.RedisError: it does not.
        """
        await self._redis.ping()

    async def memory(self) -> connection.Memory:
        """Read the memory of Redis. Raises: as `connection.memory`."""
        return await connection.memory(self._redis)

    async def run(self, script: Script[Answer]) -> Answer:
        """Run a Lua script by its digest; load it first if the server lacks it."""
        text, arguments = self._text(script), self._arguments(script)
        call = ("EVALSHA", digest(text), 1, PREFIX, *arguments)
        try:
            answer = await self._redis.execute_command(*call)
        except NoScriptError:
            await self._redis.script_load(text)
            answer = await self._redis.execute_command(*call)
        return script.parse(answer)

    async def run_confirmed(self, script: Script[Answer]) -> Answer:
        """Run a Lua script that accepts data, and wait for `wait_replicas` to confirm its writes.

        Raises: Unconfirmed: they did not confirm in time, although the script was executed.
        """
        replicas = self._settings.wait_replicas
        if not replicas:
            return await self.run(script)
        try:
            answer, confirmed = await self._run_and_wait(script)
        except NoScriptError:
            await self._redis.script_load(self._text(script))
            answer, confirmed = await self._run_and_wait(script)
        if confirmed < replicas:
            raise Unconfirmed(f"{confirmed} of {replicas} replicas confirmed {script.name()}")
        return script.parse(answer)

    async def _run_and_wait(self, script: Script[Any]) -> tuple[Any, int]:
        """Run a Lua script; return its answer, and how many replicas have its writes.

        WAIT covers the writes of its own connection. So script, write and WAIT are sent and
        repeated together. The extra write is needed because a repeated script may write nothing.
        """
        wait_ms = round(self._settings.wait_replicas_s * 1000)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.evalsha(digest(self._text(script)), 1, PREFIX, *self._arguments(script))
            pipe.set(CONFIRMED, "")
            pipe.wait(self._settings.wait_replicas, wait_ms)
            answers = await pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        answer, _, confirmed = answers
        return answer, confirmed

    def _text(self, script: Script[Any]) -> str:
        return source(script.name())

    def _arguments(self, script: Script[Any]) -> list[str]:
        return [_ARGS.encode(self._common | script.args()), *script.texts()]


def new_call() -> str:
    """Return a random id of one call, by which Lua scripts recognize its repeat."""
    return secrets.token_hex(8)
