"""Tenant records in Redis: concurrent changes, and the copies that processes cache."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from service.jobs.redis import keys
from service.jobs.tenants import Records, TenantRecords, Tenants
from service.settings.tenants import TenantSettings

FILE = {"acme": TenantSettings(weight=2, max_queued=5), "*": TenantSettings(max_queued=1)}
"""Tenants in the settings file."""
FOREVER = 1e9


def adding(name: str, **values: object) -> object:
    return lambda records: records | {name: TenantSettings(**values)}


async def test_record_overrides_the_settings_file(empty_redis: Redis) -> None:
    records, tenants = TenantRecords(empty_redis), Tenants(FILE, empty_redis, max_age_s=0)
    assert await tenants.of("acme") == FILE["acme"]
    assert (await tenants.of("other")).max_queued == 1
    await records.change(adding("acme", max_queued=7, metrics_class="gold"))
    acme = await tenants.of("acme")
    assert (acme.max_queued, acme.weight) == (7, 1), "the record replaces the file's entry"
    assert await tenants.classes() == ["default", "gold"]
    await records.change(adding("*", max_queued=3))
    assert (await tenants.of("other")).max_queued == 3
    assert (await tenants.of("acme")).max_queued == 7
    await records.change(lambda _: {})
    assert await tenants.of("acme") == FILE["acme"]
    assert await Tenants({}, empty_redis, max_age_s=0).of("acme") == TenantSettings()


async def test_copy_has_a_maximum_age(empty_redis: Redis) -> None:
    records = TenantRecords(empty_redis)
    old, new = (Tenants({}, empty_redis, max_age_s) for max_age_s in (FOREVER, 0))
    assert (await old.of("acme"), await new.of("acme")) == (TenantSettings(), TenantSettings())
    await records.change(adding("acme", max_queued=7))
    assert (await old.of("acme")).max_queued is None and old.cached("acme").max_queued is None
    assert new.cached("acme").max_queued is None, "`cached` reads nothing"
    assert (await new.of("acme")).max_queued == new.cached("acme").max_queued == 7


async def test_flushed_redis_is_noticed(empty_redis: Redis) -> None:
    tenants = Tenants({}, empty_redis, max_age_s=0)
    await TenantRecords(empty_redis).change(adding("acme", max_queued=7))
    assert (await tenants.of("acme")).max_queued == 7
    await empty_redis.flushdb()
    assert (await tenants.of("acme")).max_queued is None


async def test_concurrent_changes_are_all_kept(empty_redis: Redis) -> None:
    """Concurrent changes of different tenants are all kept."""
    names = [f"tenant-{number}" for number in range(20)]
    await asyncio.gather(
        *(TenantRecords(empty_redis).change(adding(name, weight=3)) for name in names)
    )
    records = TenantRecords(empty_redis)
    assert await records.all() == dict.fromkeys(names, TenantSettings(weight=3))
    assert await records.changes() == len(names)


async def test_invalid_change_is_rejected(empty_redis: Redis) -> None:
    records = TenantRecords(empty_redis)
    await records.change(adding("acme", weight=3))

    def wrong(stored: Records) -> Records:
        return {"a b": TenantSettings()}

    with pytest.raises(ValueError, match="is not a valid tenant name"):
        await records.change(wrong)
    assert (await records.all()).keys() == {"acme"} and await records.changes() == 1


async def test_a_newer_ateliers_record_can_be_read(empty_redis: Redis) -> None:
    """Front ends of two versions read the same records during an upgrade."""
    await empty_redis.hset(keys.TENANTS, "acme", '{"max_queued": 7, "of_tomorrow": 1}')
    assert await TenantRecords(empty_redis).all() == {"acme": TenantSettings(max_queued=7)}
