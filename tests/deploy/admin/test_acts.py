"""Commands at Redis leave in the audit log what they have changed, and who has done it."""

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
    """Commands in this process: their exit codes, and the acts that they leave."""

    def __init__(self, capsys: Capsys, redis_url: str, folder: Path) -> None:
        self._capsys, self._url, self._folder = capsys, redis_url, folder
        self._seen = set[str]()

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        at = ("--redis", self._url, "--state", str(self._folder))
        code = atelier.main([*arguments, *at])
        said = self._capsys.readouterr()
        return code, said.out.strip(), said.err

    def act(self, *arguments: str) -> AuditRecord:
        """The one act that a command leaves."""
        self(*arguments)
        (record,) = [one for one in self.left() if one.id not in self._seen]
        self._seen |= {one.id for one in self.left()}
        return record

    def left(self) -> list[AuditRecord]:
        """Ends of all acts, the oldest first; each was written down before it."""
        records = asyncio.run(self._left())
        begun = {one.id for one in records if one.outcome == "begun"}
        ended = [one for one in records if one.outcome != "begun"]
        assert begun == {one.id for one in ended}
        return sorted(ended, key=lambda one: one.at)

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


def told(record: AuditRecord) -> tuple[str, str, str, str]:
    assert record.name == operator_of_process().name and record.reason in ("", "a ticket")
    return record.act, record.target, record.outcome, record.error


def test_keys(run: Commands) -> None:
    made = run.act("keys", "create", "--tenant", "acme", "--name", "shop", "--reason", "a ticket")
    assert told(made) == ("create key", "acme", "done", "") and made.reason == "a ticket"
    exported = run("keys", "export")[1]
    (key,) = map(json.loads, exported.splitlines())
    assert made.details == {"key": key["id"]} and key["digest"] not in made.model_dump_json()
    assert told(run.act("keys", "revoke", key["id"])) == ("revoke key", key["id"], "done", "")
    failed = run.act("keys", "revoke", "none")
    assert told(failed)[:3] == ("revoke key", "none", "failed") and "no key" in failed.error
    taken = run.act("keys", "import", run.file(exported))
    assert told(taken) == ("import keys", key["id"], "done", "")
    made = run.act("keys", "create", "--operator", "--name", "alice")
    assert told(made) == ("create operator's key", "alice", "done", "")


def test_tenants(run: Commands) -> None:
    """Also one whose name is that of a parameter."""
    made = run.act("tenants", "set", "acme", "max_queued=7", "weight=none")
    assert told(made) == ("set tenant", "acme", "done", "")
    assert made.details == {"max_queued": "7", "weight": "none"}
    wrong = run.act("tenants", "set", "acme", "max_queued=0")
    assert told(wrong)[2] == "failed" and "max_queued" in wrong.error
    taken = run.act("tenants", "import", run.file(TENANTS))
    assert told(taken) == ("import tenants", "acme reason", "done", "")
    assert taken.details == {"acme": "weight=2.0", "reason": "max_queued=3"}
    taken = run.act("tenants", "import", run.file(TENANTS), "--replace")
    assert told(taken)[0] == "replace tenants"
    assert told(run.act("tenants", "remove", "acme")) == ("remove tenant", "acme", "done", "")
    assert told(run.act("tenants", "remove", "acme"))[2] == "failed"


def test_webhooks(run: Commands) -> None:
    made = run.act("webhooks", "create", "--tenant", "acme")
    assert told(made) == ("create webhook secret", "acme", "done", "")
    secret_id = made.details["secret"]
    assert secret_id in run("webhooks", "list")[1] and "whsec_" not in made.model_dump_json()
    gone = run.act("webhooks", "revoke", secret_id)
    assert told(gone) == ("revoke webhook secret", secret_id, "done", "")
    assert told(run.act("webhooks", "revoke", secret_id))[2] == "failed"


def test_aliases(run: Commands) -> None:
    made = run.act("aliases", "set", "flux", "@r1=9", "@r2=1", "--baseline", "@r1")
    assert told(made) == ("set alias", "flux", "done", "")
    assert made.details == {"@r1": "9", "@r2": "1", "baseline": "@r1"}
    exported = run("aliases", "export")[1]
    assert told(run.act("aliases", "remove", "flux")) == ("remove alias", "flux", "done", "")
    assert told(run.act("aliases", "remove", "flux"))[2] == "failed"
    taken = run.act("aliases", "import", run.file(exported))
    assert told(taken) == ("import aliases", "flux", "done", "")


def test_backups(run: Commands, redis_url: str) -> None:
    """A backup has no part of its own act; a restore is in the log of what it has filled."""

    async def flush() -> None:
        redis = await connection.connect(RedisSettings(url=redis_url))
        await redis.flushall()
        await redis.aclose()

    run.act("tenants", "set", "acme", "weight=2")
    code, name, _ = run("backup")
    assert code == 0 and [one.act for one in run.left()] == ["set tenant", "create backup"]
    asyncio.run(flush())
    code, _, said = run("backup", "restore", name)
    assert code == 0, said
    *_, restored = run.left()
    assert told(restored) == ("restore backup", name, "done", "")
    assert [one.act for one in run.left()] == ["set tenant", "restore backup"]


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        yield from (action.choices or {}).items()


@pytest.mark.parametrize("group", ["keys", "tenants", "aliases", "webhooks", "backup"])
def test_whatever_changes_something_takes_a_reason(group: str) -> None:
    command = dict(parsers(atelier.parser()))[group]
    for name, one in parsers(command):
        assert ("--reason" in one.format_help()) is (name not in READS), name


async def test_a_full_redis_stops_no_act(
    capsys: Capsys, redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """A leaked key is revoked where Redis takes no more; who has done it is told at once."""
    key, _ = await ApiKeys(empty_redis).create("acme")
    command = ["keys", "revoke", key.id, "--redis", redis_url, "--state", str(tmp_path)]
    await empty_redis.config_set("maxmemory", 1)
    try:
        code = await asyncio.to_thread(atelier.main, command)
    finally:
        await empty_redis.config_set("maxmemory", 0)
    assert code == 0 and not await ApiKeys(empty_redis).any()
    said = [line for line in capsys.readouterr().err.splitlines() if "keep the line" in line]
    records = [AuditRecord.model_validate_json(line[line.index("{") :]) for line in said]
    assert [(one.act, one.target, one.outcome) for one in records] == [
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
    out, said = await command.communicate()
    return command.returncode, out.decode().strip(), said.decode()


@pytest.mark.processes
async def test_a_command_elsewhere_is_in_the_log_of_the_installation(
    redis_url: str, empty_redis: Redis, tmp_path: Path
) -> None:
    """A process whose own store is another; its user is the system's, not its variables'."""
    settings = Settings(state_dir=tmp_path / "front", queue=QueueSettings(reap_every_s=0.1))
    queue, store = await Queue.connect(redis_url, settings.queue), Store(settings.store_url)
    laptop = tmp_path / "laptop"
    at = ("--redis", redis_url, "--state", str(laptop), "--reason", "a new shop")
    code, text, said = await a_process("keys", "create", "--tenant", "acme", *at, USER="mallory")
    assert code == 0, said
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


def test_an_embedded_redis_keeps_acts_for_the_server_to_come(
    capsys: Capsys, tmp_path: Path
) -> None:
    """`atelier keys` before the first `atelier up`."""
    assert atelier.main(["keys", "create", "--tenant", "acme", "--state", str(tmp_path)]) == 0
    with embedded(tmp_path) as url:
        (act,) = Commands(capsys, url, tmp_path).left()
    assert told(act) == ("create key", "acme", "done", "")
