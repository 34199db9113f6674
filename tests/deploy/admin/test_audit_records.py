"""Admin commands record each change and its operator in the audit log."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

import atelier
from deploy.local.embedded_redis import embedded
from service.app import create_app
from service.auth.api_keys import ApiKeys
from service.jobs.queue import Queue
from service.jobs.redis import connection, keys
from service.jobs.storage.object_store import Store
from service.operators.audit import FOLDER
from service.operators.commands import CommandActs, operator_of_process
from service.schemas.audit import AuditRecord
from service.settings.queue import QueueSettings
from service.settings.redis import RedisSettings
from service.settings.settings import Settings
from tests.service.conftest import served
from tests.service.eventually import eventually

ROOT = Path(__file__).parents[3]
READS = {"list", "export"}
TENANTS = "[tenants.acme]\nweight = 2.0\n[tenants.reason]\nmax_queued = 3\n"
Capsys = pytest.CaptureFixture[str]


class Commands:
    """Runs commands in this process and returns their exit codes and audit records."""

    def __init__(self, capsys: Capsys, redis_url: str, folder: Path) -> None:
        self._capsys, self._url, self._folder = capsys, redis_url, folder
        self._previous_ids = set[str]()

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        at = ("--redis", self._url, "--state", str(self._folder))
        code = atelier.main([*arguments, *at])
        captured = self._capsys.readouterr()
        return code, captured.out.strip(), captured.err

    def act(self, *arguments: str) -> AuditRecord:
        """Run a command and return the single audit record that it adds."""
        self(*arguments)
        (record,) = [entry for entry in self.left() if entry.id not in self._previous_ids]
        self._previous_ids |= {entry.id for entry in self.left()}
        return record

    def left(self) -> list[AuditRecord]:
        """Return the final record of each action, oldest first; each needs an earlier "begun"
        record."""
        records = asyncio.run(self._left())
        begun = {record.id for record in records if record.outcome == "begun"}
        ended = [record for record in records if record.outcome != "begun"]
        assert begun == {record.id for record in ended}
        return sorted(ended, key=lambda record: record.at)

    def file(self, text: str) -> str:
        path = self._folder / "file"
        path.write_text(text)
        return str(path)

    async def _left(self) -> list[AuditRecord]:
        redis = await connection.connect(RedisSettings(url=self._url))
        try:
            return await CommandActs(redis).all()
        finally:
            await redis.aclose()


@pytest.fixture
def run(capsys: Capsys, redis_url: str, empty_redis: Redis, tmp_path: Path) -> Commands:
    return Commands(capsys, redis_url, tmp_path)


def summary(record: AuditRecord) -> tuple[str, str, str, str]:
    assert record.name == operator_of_process().name and record.reason in ("", "a ticket")
    return record.act, record.target, record.outcome, record.error


def test_key_changes_are_recorded(run: Commands) -> None:
    record = run.act("keys", "create", "--tenant", "acme", "--name", "shop", "--reason", "a ticket")
    assert summary(record) == ("create key", "acme", "done", "") and record.reason == "a ticket"
    exported = run("keys", "export")[1]
    (key,) = map(json.loads, exported.splitlines())
    assert record.details == {"key": key["id"]} and key["digest"] not in record.model_dump_json()
    assert summary(run.act("keys", "revoke", key["id"])) == ("revoke key", key["id"], "done", "")
    failed = run.act("keys", "revoke", "none")
    assert summary(failed)[:3] == ("revoke key", "none", "failed") and "no key" in failed.error
    imported = run.act("keys", "import", run.file(exported))
    assert summary(imported) == ("import keys", key["id"], "done", "")
    record = run.act("keys", "create", "--operator", "--name", "alice")
    assert summary(record) == ("create operator's key", "alice", "done", "")


def test_tenants(run: Commands) -> None:
    """Tenant commands are audited, even for a tenant named like a parameter of the command."""
    record = run.act("tenants", "set", "acme", "max_queued=7", "weight=none")
    assert summary(record) == ("set tenant", "acme", "done", "")
    assert record.details == {"max_queued": "7", "weight": "none"}
    rejected = run.act("tenants", "set", "acme", "max_queued=0")
    assert summary(rejected)[2] == "failed" and "max_queued" in rejected.error
    imported = run.act("tenants", "import", run.file(TENANTS))
    assert summary(imported) == ("import tenants", "acme reason", "done", "")
    assert imported.details == {"acme": "weight=2.0", "reason": "max_queued=3"}
    imported = run.act("tenants", "import", run.file(TENANTS), "--replace")
    assert summary(imported)[0] == "replace tenants"
    assert summary(run.act("tenants", "remove", "acme")) == ("remove tenant", "acme", "done", "")
    assert summary(run.act("tenants", "remove", "acme"))[2] == "failed"


def test_webhooks(run: Commands) -> None:
    record = run.act("webhooks", "create", "--tenant", "acme")
    assert summary(record) == ("create webhook secret", "acme", "done", "")
    secret_id = record.details["secret"]
    assert secret_id in run("webhooks", "list")[1] and "whsec_" not in record.model_dump_json()
    revoked = run.act("webhooks", "revoke", secret_id)
    assert summary(revoked) == ("revoke webhook secret", secret_id, "done", "")
    assert summary(run.act("webhooks", "revoke", secret_id))[2] == "failed"


def test_aliases(run: Commands) -> None:
    record = run.act("aliases", "set", "flux", "@r1=9", "@r2=1", "--baseline", "@r1")
    assert summary(record) == ("set alias", "flux", "done", "")
    assert record.details == {"@r1": "9", "@r2": "1", "baseline": "@r1"}
    exported = run("aliases", "export")[1]
    assert summary(run.act("aliases", "remove", "flux")) == ("remove alias", "flux", "done", "")
    assert summary(run.act("aliases", "remove", "flux"))[2] == "failed"
    imported = run.act("aliases", "import", run.file(exported))
    assert summary(imported) == ("import aliases", "flux", "done", "")


def test_backups(run: Commands, redis_url: str) -> None:
    """A backup does not contain its own audit record; a restore appends to the restored log."""

    async def flush() -> None:
        redis = await connection.connect(RedisSettings(url=redis_url))
        await redis.flushall()
        await redis.aclose()

    run.act("tenants", "set", "acme", "weight=2")
    code, name, _ = run("backup")
    assert code == 0 and [record.act for record in run.left()] == ["set tenant", "create backup"]
    asyncio.run(flush())
    code, _, err = run("backup", "restore", name)
    assert code == 0, err
    *_, restored = run.left()
    assert summary(restored) == ("restore backup", name, "done", "")
    assert [record.act for record in run.left()] == ["set tenant", "restore backup"]


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        yield from dict(action.choices or {}).items()


@pytest.mark.parametrize("group", ["keys", "tenants", "aliases", "webhooks", "backup"])
def test_every_mutating_command_requires_a_reason(group: str) -> None:
    command = dict(parsers(atelier.parser()))[group]
    for name, subparser in parsers(command):
        assert ("--reason" in subparser.format_help()) is (name not in READS), name


async def test_full_redis_does_not_prevent_actions(
    capsys: Capsys, redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """Revoking a leaked key works when Redis is full; the audit record goes to stderr instead."""
    key, _ = await ApiKeys(empty_redis).create("acme")
    command = ["keys", "revoke", key.id, "--redis", redis_url, "--state", str(tmp_path)]
    await empty_redis.config_set("maxmemory", 1)
    try:
        code = await asyncio.to_thread(atelier.main, command)
    finally:
        await empty_redis.config_set("maxmemory", 0)
    assert code == 0 and not await ApiKeys(empty_redis).any()
    lines = [line for line in capsys.readouterr().err.splitlines() if "keep the line" in line]
    records = [AuditRecord.model_validate_json(line[line.index("{") :]) for line in lines]
    assert [(record.act, record.target, record.outcome) for record in records] == [
        ("revoke key", key.id, "begun"),
        ("revoke key", key.id, "done"),
    ]
    assert not await empty_redis.exists(keys.AUDIT)


async def a_process(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ATELIER_")}
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atelier", *arguments),
        cwd=ROOT,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await command.communicate()
    return command.returncode, out.decode().strip(), err.decode()


@pytest.mark.processes
async def test_command_on_another_machine_is_audited_centrally(
    redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """A process with another store audits to Redis, under the operating system's user, not
    `USER`."""
    settings = Settings(state_dir=tmp_path / "front", queue=QueueSettings(reap_every_s=0.1))
    queue, store = await Queue.connect(redis_url, settings.queue), Store(settings.store_url)
    laptop = tmp_path / "laptop"
    at = ("--redis", redis_url, "--state", str(laptop), "--reason", "a new shop")
    code, text, err = await a_process("keys", "create", "--tenant", "acme", *at, USER="mallory")
    assert code == 0, err
    assert not await store.below(FOLDER), "no front end runs"

    async def is_stored() -> bool:
        return bool(await store.below(FOLDER)) and not await empty_redis.exists(keys.AUDIT)

    async with (
        served(create_app(settings, queue, store), settings) as address,
        httpx.AsyncClient(base_url=address, trust_env=False) as http,
    ):
        await eventually(is_stored)
        (record,) = (await http.get("/v1/admin/audit")).json()["data"]
    await queue.close()
    operator = operator_of_process()
    expected: dict[str, Any] = {
        "key_id": "",
        "name": operator.name,
        "address": operator.address,
        "act": "create key",
        "target": "acme",
        "reason": "a new shop",
        "details": {"key": text.split("_")[1]},
        "outcome": "done",
        "error": "",
    }
    assert expected.items() <= record.items()
    assert (datetime.now(UTC) - datetime.fromisoformat(record["at"])).total_seconds() < 600
    (file,) = await store.below(FOLDER)
    assert text.rpartition("_")[2] not in (await store.get(file)).decode()
    assert not [*laptop.rglob("audit")]


def test_embedded_redis_stores_audit_records_for_the_next_server(
    capsys: Capsys, tmp_path: Path
) -> None:
    """An action of `atelier keys` before the first `atelier up` is stored for the next server."""
    assert atelier.main(["keys", "create", "--tenant", "acme", "--state", str(tmp_path)]) == 0
    with embedded(tmp_path) as url:
        (act,) = Commands(capsys, url, tmp_path).left()
    assert summary(act) == ("create key", "acme", "done", "")
