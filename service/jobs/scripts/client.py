"""Base of all sides of the queue: the connection, and how a script is called."""

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
"""Lifetime of an answer kept for a repeated call: longer than a client goes on trying."""


class Calls:
    """Owns its connections: `close` ends them, and every iterator with them."""

    def __init__(self, redis: Redis, settings: QueueSettings) -> None:
        self._redis = redis
        self._settings = settings
        common = Common(settings.max_events, settings.priority_advance_s)
        self._scripts = Scripts(redis, common)
        self._subscriber = Subscriber(redis)
        self.tally = JobMetrics(CollectorRegistry())
        """Counts what this queue's calls do; whoever wants to tell of it puts one there that is on
        its page."""

    @classmethod
    async def connect(cls, url: str, settings: QueueSettings) -> Self:
        """Return a client of a queue.

        Raises: ConfigError where Redis is not there, too old or may evict keys.
        """
        return cls(await connection.connect(RedisSettings(url=url)), settings)

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """The queue of these settings. Raises: ConfigError: as `connect`."""
        return cls(await connection.connect(settings.redis), settings.queue)

    @property
    def redis(self) -> Redis:
        """The connection, for what else of ours lies there."""
        return self._redis

    @classmethod
    async def open_when_reached(cls, settings: Settings, note: Callable[[str], None]) -> Self:
        """Open a queue; wait for a server that does not answer. Raises: ConfigError."""
        queue = cls.unchecked(settings)
        try:
            await queue.check_when_reached(settings, note)
        except BaseException:
            await queue.close()
            raise
        return queue

    @classmethod
    def unchecked(cls, settings: Settings) -> Self:
        """The queue, before anything was sent. Raises: ConfigError: there is no address."""
        return cls(connection.client(settings.redis), settings.queue)

    async def check(self, settings: Settings) -> None:
        """Check that the server can be used.

        Raises: as `connection.check`.
        """
        await connection.check(self._redis, settings.redis)

    async def check_when_reached(
        self, settings: Settings, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Wait for the server, and check it.

        Raises: as `connection.check_when_reached`.
        """
        await connection.check_when_reached(self._redis, settings.redis, note)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._subscriber.close()
        await self._redis.aclose()

    async def standing(self, tenant: str, limits: TenantSettings) -> QuotaUsage:
        """Return what a tenant has taken of its quotas."""
        quota = limits.device_seconds_per_hour
        return await self._run(ReadQuota(tenant, quota, self._settings.retention_s))

    async def no_room(self, tenant: str, limits: TenantSettings) -> QuotaExceeded:
        """Return the refusal of what would be more than a tenant may have stored."""
        return QuotaExceeded("stored-bytes", await self.standing(tenant, limits))

    async def ping(self) -> None:
        """Ask Redis for an answer.

        Raises: redis.exceptions.RedisError: there is none.
        """
        await self._redis.ping()

    async def _run(self, script: Script[Answer]) -> Answer:
        return await self._scripts.run(script)

    async def _accept(self, script: Script[Answer]) -> Answer:
        """Run a script that accepts something, until `wait_replicas` have it.

        Raises: Unconfirmed: they have not in time, though it was carried out.
        """
        replicas = self._settings.wait_replicas
        if not replicas:
            return await self._run(script)
        wait_s = self._settings.wait_replicas_s
        return await self._scripts.run_confirmed(script, replicas, wait_s)


def new_call() -> str:
    """Names one call, so that its repeat is known."""
    return secrets.token_hex(8)
