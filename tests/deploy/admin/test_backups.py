"""`atelier backup`: a lost queue is restored from the store and finishes its jobs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Self

import pytest
from redis.asyncio import Redis

import atelier
from deploy.admin import backups
from deploy.admin.usage import Period, records
from service.auth.api_keys import ApiKeys
from service.front_end.ledger_mover import move_file
from service.jobs import backup
from service.jobs.backup import BackupError
from service.jobs.model.job import JobState
from service.jobs.queue import Queue
from service.jobs.redis import keys
from service.jobs.storage.object_store import Store
from service.settings.queue import QueueSettings
from service.settings.usage import UsageSettings
from service.webhooks.secrets import WebhookSecrets
from tests.service.eventually import eventually
from tests.service.jobs.examples import USAGE, a_job, a_snapshot, an_output
from tests.service.standin import MODEL, SPEC, StandIn

Captured = pytest.CaptureFixture[str]
HOUR_MS = 3_600_000
PNG = {"output": {"format": "png"}, "seed": 1}
BRIEF = QueueSettings(lease_s=5, reap_every_s=0.2)
"""Leases that expire soon, but not during a backup on a busy machine."""


@pytest.fixture
async def brief(redis_url: str, empty_redis: Redis) -> AsyncIterator[Queue]:
    """A queue with short leases."""
    queue = await Queue.connect(redis_url, BRIEF)
    yield queue
    await queue.close()


class Command:
    def __init__(self, capsys: Captured, redis_url: str, state: Path) -> None:
        self._capsys = capsys
        self._options = ("--redis", redis_url, "--state", str(state))

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        command = ["backup", *arguments, *self._options]
        code = await asyncio.to_thread(atelier.main, command)
        captured = self._capsys.readouterr()
        return code, captured.out.strip(), captured.err


@pytest.fixture
def run(capsys: Captured, redis_url: str, tmp_path: Path) -> Command:
    return Command(capsys, redis_url, tmp_path)


async def read(redis: Redis) -> dict[bytes, backup.Command]:
    return {command[1]: command for command in await backup.read(redis)}


async def test_restored_backup_continues_its_jobs(
    brief: Queue, empty_redis: Redis, run: Command, tmp_path: Path
) -> None:
    await brief.register("pool", SPEC, ready=True)
    jobs = [
        (await brief.put(a_job(request=PNG), idempotency_key=f"key {n}", digest="d"))[0]
        for n in range(6)
    ]
    done, running, _ = await brief.claim("pool", MODEL, 3)
    await brief.finish(done, [an_output(done.job)], USAGE)
    await brief.snapshot(running, [a_snapshot(running, step=3)])
    key, text = await ApiKeys(empty_redis).create("acme")
    secret = await WebhookSecrets(empty_redis).create("acme")
    await empty_redis.set("another", "program's")
    saved = await read(empty_redis)
    assert await brief.backup_age_s() is None
    code, name, err = await run()
    assert 0 <= (await brief.backup_age_s() or 0) < 3600
    assert (
        code == 0
        and re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", name)
        and f"{len(saved)} keys" in err
    )

    code, _, err = await run("restore", name)
    assert code == atelier.EXIT_CONFIG and "not empty" in err and "FLUSHDB" in err
    late, _ = await brief.put(a_job())
    await empty_redis.flushall()
    await empty_redis.script_flush()
    assert (await run("restore", name))[0] == 0
    restored = await read(empty_redis)
    restored.pop(keys.HISTORY.encode())
    restored.pop(keys.AUDIT.encode())
    saved.pop(keys.HISTORY.encode())
    missing = saved.keys() - restored.keys()
    assert restored == {name: command for name, command in saved.items() if name not in missing}
    assert all(b":call:" in name for name in missing), "these keys expire after a minute"

    assert await ApiKeys(empty_redis).find(text) == key
    assert await WebhookSecrets(empty_redis).of("acme") == [secret]
    assert await brief.get(late.id) is None, "submitted after the backup"
    jobs_now, is_new = await brief.put(a_job(), idempotency_key="key 5", digest="d")
    assert (jobs_now.id, is_new) == (jobs[5].id, False)

    async def all_ended() -> bool:
        await brief.reap()
        jobs_now = [await brief.get(job.id) for job in jobs]
        return all(job is not None and job.state is JobState.SUCCEEDED for job in jobs_now)

    async with StandIn(brief, Store(str(tmp_path / "outputs"))):
        await eventually(all_ended)
    finished = await brief.get(running.job.id)
    assert finished and finished.outputs and not await brief.finish(running, [], USAGE)
    (output,) = finished.outputs
    assert int(output.key.rpartition("/")[2].partition("-")[0]) > running.fence + 1, (
        "a claim after the backup, which the restored queue lacks, had the next fence"
    )


async def test_backups_are_listed_and_checked(
    brief: Queue, empty_redis: Redis, run: Command, tmp_path: Path
) -> None:
    await brief.put(a_job())
    number = len(await read(empty_redis))
    _, name, _ = await run()
    code, table, _ = await run("list")
    head, row = (line.split() for line in table.splitlines())
    assert code == 0 and head[:2] == ["NAME", "KEYS"] and row[:2] == [name, str(number)]
    await empty_redis.flushall()
    folder = tmp_path / "outputs" / "backups"
    code, _, err = await run("restore", "20200101T000000Z")
    assert code == atelier.EXIT_CONFIG and "atelier backup list" in err
    data = (folder / f"{name}.resp").read_bytes()
    (folder / f"{name}.resp").write_bytes(data[:-3] + b"x\r\n")
    code, _, err = await run("restore", name)
    assert code == atelier.EXIT_CONFIG and "damaged" in err
    (folder / f"{name}.resp").write_bytes(data)
    facts = (folder / f"{name}.json").read_text()
    (folder / f"{name}.json").write_text(facts.replace('"format":1', '"format":2'))
    code, _, err = await run("restore", name)
    assert code == atelier.EXIT_CONFIG and "restore it with that version" in err
    assert await backup.is_empty(empty_redis)


class OneSecond(datetime):
    """A clock that always returns the same second."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 11, 27, 16, 26, tzinfo=tz)


async def test_backups_of_one_second_are_two(
    brief: Queue, empty_redis: Redis, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "datetime", OneSecond)
    job, _ = await brief.put(a_job())
    names = [(await run())[1], (await run())[1]]
    assert names[0] != names[1] and all(name.startswith("20261127T162600Z-") for name in names)
    _, table, _ = await run("list")
    assert [line.split()[0] for line in table.splitlines()[1:]] == sorted(names)
    folder, old = tmp_path / "outputs" / "backups", "20261127T162600Z"
    for kind in ("resp", "json"):
        (folder / f"{names[0]}.{kind}").rename(folder / f"{old}.{kind}")
    _, table, _ = await run("list")
    assert [line.split()[0] for line in table.splitlines()[1:]] == [old, names[1]]
    await empty_redis.flushall()
    assert (await run("restore", old))[0] == 0
    assert await brief.get(job.id)


async def write(redis: Redis, *numbers: int) -> None:
    """Append ledger records whose hour is long over."""
    for number in numbers:
        record = {"job": f"job_{number}", "tenant": "acme", "model": MODEL}
        text = json.dumps(record | {"outcome": "succeeded", "ended_at": HOUR_MS / 1000})
        await redis.xadd(keys.LEDGER, {"record": text}, f"{HOUR_MS + number}-0")


async def test_a_restored_ledger_replaces_no_file(
    brief: Queue, empty_redis: Redis, run: Command, tmp_path: Path
) -> None:
    """The backup holds half an hour's records; that hour's file was stored before the loss."""
    store, usage = Store(str(tmp_path / "outputs")), UsageSettings()
    await write(empty_redis, 0, 1, 2)
    _, name, _ = await run()
    await write(empty_redis, 3, 4, 5)
    assert await move_file(brief, store, usage, "before")
    await empty_redis.flushall()
    assert (await run("restore", name))[0] == 0
    await write(empty_redis, 7)
    assert await move_file(brief, store, usage, "after")
    job_ids = [record.job async for record in records(store, Period())]
    assert sorted(job_ids) == [f"job_{number}" for number in (0, 1, 2, 3, 4, 5, 7)]


async def test_rejected_backup_leaves_nothing(empty_redis: Redis) -> None:
    await empty_redis.set(keys.PREFIX + "one", "1")
    (valid,) = await backup.read(empty_redis)
    await empty_redis.flushall()
    damaged = [b"RESTORE", keys.PREFIX.encode() + b"two", b"0", valid[3][:-1] + b"x", b"ABSTTL"]
    with pytest.raises(BackupError, match="older than the server"):
        await backup.restore(empty_redis, [valid, damaged])
    assert await backup.is_empty(empty_redis)


def test_file_format_round_trips() -> None:
    commands = [[b"RESTORE", b"a", b"0", b"\r\n\x00*1\r\n$", b"ABSTTL"], [b"PING"], [b""]]
    data = b"".join(backup.packed(commands))
    assert data.startswith(b"*5\r\n$7\r\nRESTORE\r\n") and [*backup.unpacked(data)] == commands
