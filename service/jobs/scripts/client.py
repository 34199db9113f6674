"""Base class of the queue's client: its connections, and calls of scripts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Self

from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from service.jobs.model.errors import QuotaExceeded
from service.jobs.model.metrics import JobMetrics
from service.jobs.model.quota_usage import QuotaUsage
from service.jobs.redis import connection
from service.jobs.redis.pubsub import Subscriber
from service.jobs.scripts.producer import ReadQuota
from service.jobs.scripts.runner import Scripts
from service.jobs.scripts.script import Answer, Common, Script
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.settings import Settings
from service.settings.tenants import TenantSettings

ANSWER_MS = 60_000
"""Lifetime of a stored answer for a repeated call. It exceeds the time for which a client
retries."""


class QueueClient:
    """Base of the queue's parts. Owns its connections: `close` ends them and all iterators."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        self._redis = redis
        self._settings = settings
        common = Common(settings.max_events, settings.priority_advance_s)
        self._scripts = Scripts(redis, common)
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
        """Client of Redis, for front ends' other data there."""
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
        """Create a client without connecting. Raises: ConfigError: the settings have no address."""
        return cls(connection.client(settings.redis), settings.queue)

    async def check(self, settings: Settings) -> None:
        """Check that the server can be used.

        Raises: RedisUnreachable, ConfigError: as `connection.check`.
        """
        await connection.check(self._redis, settings.redis)

    async def check_when_reached(
        self, settings: Settings, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait until the server answers, and check it.

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
        return await self._run(ReadQuota(tenant, quota, self._settings.retention_s))

    async def storage_quota_exceeded(self, tenant: str, limits: TenantSettings) -> QuotaExceeded:
        """Return the exception for exceeding the tenant's quota of stored bytes."""
        return QuotaExceeded("stored-bytes", await self.quota_usage(tenant, limits))

    async def ping(self) -> None:
        """Check that Redis answers.

        Raises: redis.exceptions.RedisError: it does not.
        """
        await self._redis.ping()

    async def _run(self, script: Script[Answer]) -> Answer:
        return await self._scripts.run(script)

    async def _accept(self, script: Script[Answer]) -> Answer:
        """Run a script that accepts data, and wait for `wait_replicas` to confirm its writes.

        Raises: Unconfirmed: they did not confirm in time, although the script was executed.
        """
        replicas = self._settings.wait_replicas
        if not replicas:
            return await self._run(script)
        wait_s = self._settings.wait_replicas_s
        return await self._scripts.run_confirmed(script, replicas, wait_s)


def new_call() -> str:
    """Return a random id of one call, by which scripts recognize its repeat."""
    return secrets.token_hex(8)
