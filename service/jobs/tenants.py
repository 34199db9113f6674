"""Settings of tenants as records in Redis, with a cached copy per process.

A tenant's record in Redis overrides its section in the settings file. `*` stands for all tenants
without a record or section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from redis.asyncio import Redis

from service.jobs.records import RecordCopies
from service.jobs.records import Records as RecordsOf
from service.jobs.redis import keys
from service.settings.tenants import OTHERS, TenantSettings, check_tenant, classes_of

NO_LIMITS = TenantSettings()

Records = dict[str, TenantSettings]
"""Tenants' settings by name."""


class TenantRecords(RecordsOf[TenantSettings]):
    """Records of tenants' settings in Redis."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, keys.TENANTS, keys.TENANT_CHANGES, _parsed, _check)


class Tenants:
    """Cached settings of all tenants in one process, from the settings file and Redis.

    Args:
        configured: tenants of the settings file.
        max_age_s: maximum age of the cached copy.
    """

    def __init__(
        self, configured: Mapping[str, TenantSettings], redis: Redis, max_age_s: float
    ) -> None:
        self._copies = RecordCopies(TenantRecords(redis), configured, max_age_s)

    async def of(self, name: str) -> TenantSettings:
        """Return a tenant's settings, refreshed if too old. Raises: redis.exceptions.RedisError."""
        await self._copies.all()
        return self.cached(name)

    async def classes(self) -> list[str]:
        """Return the metrics classes of all tenants. Raises: redis.exceptions.RedisError."""
        return classes_of((await self._copies.all()).values())

    def cached(self, name: str) -> TenantSettings:
        """Return a tenant's settings as of the last refresh."""
        named = self._copies.cached
        return named.get(name) or named.get(OTHERS) or NO_LIMITS


def _check(name: str) -> None:
    if name != OTHERS:
        check_tenant(name)


def _parsed(text: str) -> TenantSettings:
    """Parse a tenant's record; fields of a newer Atelier are ignored."""
    names, record = TenantSettings.model_fields.keys(), json.loads(text)
    return TenantSettings(**{key: value for key, value in record.items() if key in names})
