"""API keys: stored data, and lookup by text."""

from __future__ import annotations

import time

import pytest
from redis.asyncio import Redis

from service.auth.api_keys import ApiKeys, digest_of
from service.jobs.redis.keys import API_KEYS


async def test_key_lookup_needs_the_full_text(keys: ApiKeys, empty_redis: Redis) -> None:
    key, text = await keys.create("acme", "of the shop")
    _, other = await keys.create("acme")
    assert text.startswith("atl_") and len(text.rpartition("_")[2]) >= 40 and text != other
    assert await keys.find(text) == key
    assert (key.tenant, key.name) == ("acme", "of the shop")
    assert abs(key.created_at - time.time()) < 60  # one machine's clock, written and read
    stored = "".join(await empty_redis.hvals(API_KEYS))
    assert text not in stored and text.rpartition("_")[2] not in stored
    assert text not in repr(key) and key.digest not in repr(key)


async def test_old_front_end_rejects_an_operator_key(keys: ApiKeys) -> None:
    """An older front end compares the text's digest, so it rejects an operator's key."""
    tenants, text = await keys.create("acme")
    operators, other = await keys.create_operator("alice")
    assert tenants.digest == digest_of(text) and operators.digest != digest_of(other)
    assert await keys.find(other) == operators


async def test_malformed_keys_match_no_tenant(keys: ApiKeys) -> None:
    key, text = await keys.create("acme")
    almost = text[:-1] + ("A" if text[-1] != "A" else "B")
    stolen = f"atl_{key.id}_{key.digest}"
    others = ["", "atl_", "atl__", f"atl_{key.id}", f"atl_{key.id}_", text[4:], text.upper()]
    for wrong in [almost, stolen, *others, text + "x", f"atl_0_{text[17:]}", "atl_ü_ÿ"]:
        assert await keys.find(wrong) is None, wrong


async def test_revoked_key_is_removed(keys: ApiKeys) -> None:
    assert not await keys.any()
    first, text = await keys.create("acme")
    second, other = await keys.create("zoo")
    assert await keys.all() == [first, second] and await keys.any()
    assert await keys.revoke(first.id)
    assert not await keys.revoke(first.id)
    assert (await keys.find(text), await keys.find(other)) == (None, second)
    assert await keys.all() == [second]


@pytest.mark.parametrize("tenant", ["", "*", "a b", "-a", "ü", "a:b", "x" * 65, "a\n"])
async def test_invalid_tenant_names_are_rejected(keys: ApiKeys, tenant: str) -> None:
    with pytest.raises(ValueError, match="is not a valid tenant name"):
        await keys.create(tenant)
    assert await keys.all() == []
