"""Tenants as data in Redis: who changes them, and what processes know of them."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from service.jobs.redis import keys
from service.jobs.tenants import Records, TenantRecords, Tenants
from service.settings.tenants import TenantSettings

FILE = {"acme": TenantSettings(weight=2, max_queued=5), "*": TenantSettings(max_queued=1)}
"""What the settings file has."""
FOREVER = 1e9


def adding(name: str, **values: object) -> object:
    return lambda records: records | {name: TenantSettings(**values)}


async def test_a_record_stands_before_the_file(empty_redis: Redis) -> None:
    records, known = TenantRecords(empty_redis), Tenants(FILE, empty_redis, max_age_s=0)
    assert await known.of("acme") == FILE["acme"]
    assert (await known.of("other")).max_queued == 1
    await records.change(adding("acme", max_queued=7, metrics_class="gold"))
    acme = await known.of("acme")
    assert (acme.max_queued, acme.weight) == (7, 1), "the whole record, no part of the file's"
    assert await known.classes() == ["default", "gold"]
    await records.change(adding("*", max_queued=3))
    assert (await known.of("other")).max_queued == 3
    assert (await known.of("acme")).max_queued == 7
    await records.change(lambda _: {})
    assert await known.of("acme") == FILE["acme"]
    assert await Tenants({}, empty_redis, max_age_s=0).of("acme") == TenantSettings()


async def test_a_copy_is_as_old_as_it_may_be(empty_redis: Redis) -> None:
    records = TenantRecords(empty_redis)
    old, new = (Tenants({}, empty_redis, max_age_s) for max_age_s in (FOREVER, 0))
    assert (await old.of("acme"), await new.of("acme")) == (TenantSettings(), TenantSettings())
    await records.change(adding("acme", max_queued=7))
    assert (await old.of("acme")).max_queued is None and old.known("acme").max_queued is None
    assert new.known("acme").max_queued is None, "nothing is read for that"
    assert (await new.of("acme")).max_queued == new.known("acme").max_queued == 7


async def test_a_redis_that_was_emptied_is_seen(empty_redis: Redis) -> None:
    known = Tenants({}, empty_redis, max_age_s=0)
    await TenantRecords(empty_redis).change(adding("acme", max_queued=7))
    assert (await known.of("acme")).max_queued == 7
    await empty_redis.flushdb()
    assert (await known.of("acme")).max_queued is None


async def test_nobody_undoes_what_others_change(empty_redis: Redis) -> None:
    """At the same time, each another tenant."""
    names = [f"tenant-{number}" for number in range(20)]
    await asyncio.gather(
        *(TenantRecords(empty_redis).change(adding(name, weight=3)) for name in names)
    )
    records = TenantRecords(empty_redis)
    assert await records.all() == dict.fromkeys(names, TenantSettings(weight=3))
    assert await records.changes() == len(names)


async def test_what_is_wrong_changes_nothing(empty_redis: Redis) -> None:
    records = TenantRecords(empty_redis)
    await records.change(adding("acme", weight=3))

    def wrong(known: Records) -> Records:
        return {"a b": TenantSettings()}

    with pytest.raises(ValueError, match="can't be a tenant"):
        await records.change(wrong)
    assert (await records.all()).keys() == {"acme"} and await records.changes() == 1


async def test_a_newer_ateliers_record_can_be_read(empty_redis: Redis) -> None:
    """As front ends of two versions read the same while the newer ones come."""
    await empty_redis.hset(keys.TENANTS, "acme", '{"max_queued": 7, "of_tomorrow": 1}')
    assert await TenantRecords(empty_redis).all() == {"acme": TenantSettings(max_queued=7)}
