"""Aliases as data in Redis, and their choice of a version."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError
from redis.asyncio import Redis

from service.jobs.aliases import AliasRecords
from service.jobs.model.alias import Alias, StepBack
from service.jobs.redis import keys

POINTS = [n / 1000 for n in range(1000)]
R1, R2, R3 = "m@r1", "m@r2", "m@r3"


def draw_counts(alias: Alias, ready: set[str], registered: set[str] | None = None) -> Counter[str]:
    candidates = alias.candidates(ready, registered or ready)
    return Counter(alias.draw(candidates, point) for point in POINTS) if candidates else Counter()


def test_versions_are_chosen_by_weight() -> None:
    alias = Alias(weights={R1: 90, R2: 10, R3: 0})
    assert draw_counts(alias, {R1, R2, R3}) == {R1: 900, R2: 100}
    assert alias.leading(alias.candidates({R1, R2}, ())) == R1


def test_version_that_is_not_ready_gets_no_jobs() -> None:
    alias = Alias(weights={R1: 90, R2: 10})
    assert draw_counts(alias, {R2}, {R1, R2}) == {R2: 1000}
    assert draw_counts(alias, set(), {R1, R2}) == {R1: 900, R2: 100}, "jobs wait for workers"
    assert draw_counts(alias, set(), {R3}) == {}


def test_version_of_weight_0_is_a_fallback() -> None:
    alias = Alias(weights={R1: 0, R2: 100})
    assert draw_counts(alias, {R1, R2}) == {R2: 1000}
    assert draw_counts(alias, {R1}) == {R1: 1000}
    assert draw_counts(alias, {R1}, {R1, R2}) == {R1: 1000}
    bad = Alias(weights={R1: 0, R2: 1}, stepped_back={R1: StepBack(at=0, reason="slow")})
    assert draw_counts(bad, {R1}, {R1, R2}) == {R2: 1000}, (
        "a version that stepped back gets no jobs"
    )


def test_step_back_leaves_a_serving_version() -> None:
    alias = Alias(weights={R1: 0, R2: 100}, baseline=R1).without(R2, 7.0, "slow")
    assert alias.weights == {R1: 100, R2: 0}
    assert alias.stepped_back == {R2: StepBack(at=7.0, reason="slow")}
    part = Alias(weights={R1: 90, R2: 10}, baseline=R1).without(R2, 7.0, "slow")
    assert part.weights == {R1: 90, R2: 0}


@pytest.mark.parametrize(
    "values",
    [
        {"weights": {}},
        {"weights": {R1: 0}},
        {"weights": {R1: -1, R2: 2}},
        {"weights": {R1: float("inf")}},
        {"weights": {R1: 1}, "baseline": R2},
    ],
)
def test_invalid_alias_is_rejected(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Alias.model_validate(values)


async def test_aliases_are_kept(empty_redis: Redis) -> None:
    records = AliasRecords(empty_redis)
    alias = Alias(weights={R1: 90, R2: 10}, baseline=R1)
    await records.change(lambda stored: stored | {"m": alias})
    assert await records.all() == {"m": alias}
    text = await empty_redis.hget(keys.ALIASES, "m")
    await empty_redis.hset(keys.ALIASES, "m", text.replace("{", '{"of_tomorrow": 1, ', 1))
    assert await records.all() == {"m": alias}, "a newer Atelier's record can be read"
    for name in ("a/b", "", "a\n", 201 * "a"):
        with pytest.raises(ValueError, match="can't be an alias"):
            await records.change(lambda stored, name=name: stored | {name: alias})
    await records.change(lambda _: {})
    assert await records.all() == {}
