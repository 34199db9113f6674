"""Tenants' settings as data in Redis.

A tenant's record there stands before the settings file's section of that name; `*` is whoever is
named in neither.
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
    """Tenants' records in Redis."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, keys.TENANTS, keys.TENANT_CHANGES, _parsed, _check)


class Tenants:
    """Tenants as a process knows them.

    Args:
        configured: the settings file's.
        max_age_s: of its copy.
    """

    def __init__(
        self, configured: Mapping[str, TenantSettings], redis: Redis, max_age_s: float
    ) -> None:
        self._copies = RecordCopies(TenantRecords(redis), configured, max_age_s)

    async def of(self, name: str) -> TenantSettings:
        """Return a tenant's settings. Raises: redis.exceptions.RedisError."""
        await self._copies.all()
        return self.known(name)

    async def classes(self) -> list[str]:
        """Return the metrics classes of all tenants. Raises: redis.exceptions.RedisError."""
        return classes_of((await self._copies.all()).values())

    def known(self, name: str) -> TenantSettings:
        """Return a tenant's settings as they were last read."""
        named = self._copies.known
        return named.get(name) or named.get(OTHERS) or NO_LIMITS


def _check(name: str) -> None:
    if name != OTHERS:
        check_tenant(name)


def _parsed(text: str) -> TenantSettings:
    """Parse a record; what only a newer Atelier knows is left out."""
    known, record = TenantSettings.model_fields.keys(), json.loads(text)
    return TenantSettings(**{key: value for key, value in record.items() if key in known})
