"""Every key of the tests is in the schema, and `may_stay` separates permanent keys from
leftovers."""

from __future__ import annotations

from service.jobs.redis import keys
from tests.chaos import schema


def test_the_table_is_read() -> None:
    assert len(schema.SCHEMA) > 25
    assert set(schema.OUTLIVE_JOBS) | schema.EXPIRE.keys() <= schema.SCHEMA.keys()
    for key in (keys.API_KEYS, keys.job("1"), keys.events("1"), keys.queue("m", "acme")):
        assert schema.rows_of(key)
    assert not schema.rows_of("{atelier}:what") and not schema.rows_of("job:1")


def test_allowed_leftover_keys() -> None:
    allowed = {"models": -1, "apikeys": -1, "pools:flux": 3, "call:ab": 59, "used:acme": 3600}
    assert all(schema.may_stay(keys.PREFIX + key, ttl_s) for key, ttl_s in allowed.items())
    forbidden = {"job:1": -1, "leases": -1, "trash": -1, "call:ab": -1, "queue:4:flux:acme": -1}
    forbidden |= {"used:acme": -1, "promised:acme": -1, "previews:1": 5, "what": 5}
    assert not any(schema.may_stay(keys.PREFIX + key, ttl_s) for key, ttl_s in forbidden.items())
