"""Audit records of admin commands, from Redis to the store: none is lost, replaced or forged."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from service.jobs.redis import keys
from service.jobs.storage.errors import StoreError
from service.jobs.storage.object_store import Store
from service.operators.audit import FOLDER, AuditLog
from service.operators.commands import (
    COMMAND_LINE,
    CRASH_TIMEOUT,
    CommandActs,
    acts_of_day,
    move_acts,
    operator_of_process,
)
from service.schemas.audit import AuditRecord

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
"""A time before any running command."""


def a_record(**fields: Any) -> AuditRecord:
    operator = operator_of_process()
    defaults = {"id": "0123456789ab", "at": NOW, "key_id": "", "act": "revoke key", "target": "k"}
    by = {"name": operator.name, "address": operator.address, "outcome": "done"}
    return AuditRecord(**{**defaults, **by, **fields})


@pytest.fixture
def acts(empty_redis: Redis) -> CommandActs:
    return CommandActs(empty_redis)


async def stored(store: Store) -> list[AuditRecord]:
    return await AuditLog(store).of_day(NOW.date())


def test_operator_is_the_system_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "mallory")
    operator, host = operator_of_process(), socket.gethostname()
    assert operator.name == f"{pwd.getpwuid(os.getuid()).pw_name}@{host}"
    assert (operator.key_id, operator.address) == ("", f"command line at {host}")


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Example: a container."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert operator_of_process().name.startswith("uid 4000000001@")


async def test_finished_commands_are_stored(
    acts: CommandActs, empty_redis: Redis, store: Store
) -> None:
    begun, done = a_record(outcome="begun"), a_record()
    await acts.add(begun)
    await acts.add(done)
    assert await acts_of_day(empty_redis, store, NOW.date()) == [done], "before any front end"
    await asyncio.gather(*(move_acts(empty_redis, store) for _ in range(3)))
    assert await store.below(FOLDER) == [f"{FOLDER}/2026/01/31/120000.000000-{done.id}.json"]
    assert await stored(store) == [done] == await acts_of_day(empty_redis, store, NOW.date())
    assert not await empty_redis.exists(keys.AUDIT)


async def test_crashed_command_stays_begun(
    acts: CommandActs, empty_redis: Redis, store: Store
) -> None:
    young = a_record(id="a" * 12, outcome="begun", at=datetime.now(UTC) - CRASH_TIMEOUT / 2)
    died = a_record(outcome="begun")
    for record in (young, died):
        await acts.add(record)
    await move_acts(empty_redis, store)
    assert await stored(store) == [died] and await acts.all() == [young]
    assert young in await acts_of_day(empty_redis, store, young.at.date())
    late = a_record(outcome="failed", error="it took long")
    await acts.add(late)
    await move_acts(empty_redis, store)
    assert await stored(store) == [late]


@pytest.mark.parametrize("outcome", ["begun", "failed"])
async def test_stored_audit_outcome_is_never_replaced(
    acts: CommandActs, empty_redis: Redis, store: Store, outcome: str
) -> None:
    """Neither an older record from a backup nor a forged one in Redis replaces it."""
    done = a_record()
    await AuditLog(store).add(done)
    await acts.add(a_record(outcome=outcome))
    await move_acts(empty_redis, store)
    assert await stored(store) == [done] and not await acts.all()


async def test_audit_records_wait_for_an_unavailable_store(
    acts: CommandActs, empty_redis: Redis, store: Store, tmp_path: Path
) -> None:
    records = [a_record(id=f"{number:012x}") for number in range(3)]
    for record in records:
        await acts.add(record)
    outputs = tmp_path / "outputs"
    outputs.rename(tmp_path / "elsewhere")
    outputs.write_text("no folder")
    with pytest.raises(StoreError):
        await move_acts(empty_redis, store)
    assert len(await acts.all()) == 3
    outputs.unlink()
    (tmp_path / "elsewhere").rename(outputs)
    await move_acts(empty_redis, store)
    assert await stored(store) == records and not await acts.all()


@pytest.mark.parametrize(
    "made_up",
    [
        a_record(key_id="3f9c0a1b2d4e", name="alice").model_dump_json(),
        a_record(address="10.0.0.7").model_dump_json(),
        a_record().model_dump_json().replace("0123456789ab", "../../outputs/x"),
        a_record().model_dump_json().replace("12:00:00Z", "12:00:00"),
        a_record(id="a" * 12).model_dump_json(),
        "{}",
        "no json",
    ],
    ids=["a key's", "a request's", "another folder", "no time zone", "another id", "{}", "text"],
)
async def test_forged_records_are_dropped(
    acts: CommandActs, empty_redis: Redis, store: Store, made_up: str
) -> None:
    """A forged record in Redis cannot name a key, and does not block later records."""
    await empty_redis.hset(keys.AUDIT, f"{a_record().id} done", made_up)
    real = a_record(id="f" * 12, at=NOW + timedelta(seconds=1))
    await acts.add(real)
    await move_acts(empty_redis, store)
    assert await stored(store) == [real] and await store.below("") == await store.below(FOLDER)
    assert not await empty_redis.exists(keys.AUDIT)
    assert real.address.startswith(COMMAND_LINE)
