"""The StatefulSet's command and configuration, run with a real Redis server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.embedded_redis import _options, server_program
from service.jobs.redis.connection import connect
from service.settings.redis import RedisSettings
from service.settings.section import ConfigError
from tests.deploy.k8s.objects import named, pods_of
from tests.deploy.k8s.rendering import REPOSITORY, Object, overlay
from tests.service.eventually import eventually

PASSWORD = "correct horse battery staple"


def moved(text: str, folder: Path) -> str:
    """Move the pod's mounts to a folder, and its port to a socket."""
    for path in (
        "/tmp",
        "/run/secrets/atelier-redis",
        "/etc/valkey",
    ):  # /tmp first, as the folder may be in it
        text = text.replace(path, str(folder))
    socket = f"port 0\nunixsocket {folder}/socket\n"
    return text.replace("dir /data\n", f"dir {folder}\n").replace("port 6379\n", socket)


def prepare(folder: Path, objects: tuple[Object, ...]) -> str:
    """Write the pod's files and a link with its program's name; returns the command's script."""
    (pods,) = pods_of(objects, "redis")
    shell, options, script = pods.container["command"]
    assert (shell, options) == ("sh", "-euc")
    config = named(objects, "ConfigMap", "atelier-redis")["data"]["valkey.conf"]
    (folder / "valkey.conf").write_text(moved(config, folder))
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "valkey-server").symlink_to(server_program())
    return moved(script, folder)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the pod's files."""
    return tmp_path_factory.mktemp("pod")


@pytest.fixture(scope="module")
def address(pod: Path) -> Iterator[str]:
    """Address of a server started as the pod starts it."""
    folder = pod
    script = prepare(folder, overlay("cpu-demo"))
    path = f"{folder}/bin:{os.environ['PATH']}"
    command = ["sh", "-euc", script]
    client(folder / "bin", f"unix://{folder}/socket")
    with subprocess.Popen(
        command, env={"PATH": path}, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            assert server.stdout
            assert any("Ready to accept connections" in line for line in server.stdout)
            yield f"unix://{folder}/socket"
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # including the process that reloads the Secret


CLIENT = """#!{python}
import os, sys, redis
_, option, user, *command = sys.argv
assert option == "--user"
password = os.environ["VALKEYCLI_AUTH"]
assert password == os.environ["REDISCLI_AUTH"]
server = redis.Redis.from_url({address!r}, username=user, password=password)
answer = server.execute_command(" ".join(command).upper())
print("PONG" if answer is True and command == ["ping"] else answer)
"""
"""Replacement of `valkey-cli`, which not every machine has, with its manual's behavior for
`--user`."""


def client(folder: Path, address: str) -> None:
    program = folder / "valkey-cli"
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)


def test_readiness_probe_uses_the_atelier_user(address: str, tmp_path: Path) -> None:
    (pods,) = pods_of(overlay("cpu-demo"), "redis")
    probe = pods.container["startupProbe"]["exec"]
    assert pods.container["readinessProbe"]["exec"] == probe
    command = [moved(part, tmp_path) for part in probe["command"]]
    client(tmp_path, address)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for password, ready in ((PASSWORD, True), ("a guess", False)):
        (tmp_path / "password").write_text(password)
        process = subprocess.run(command, env=environment, capture_output=True)
        assert (process.returncode == 0) == ready, process.stderr


def given(address: str, folder: Path, password: str) -> RedisSettings:
    """Settings as in the manifests: a user and a password file."""
    file = folder / "password"
    file.write_text(password)
    return RedisSettings(url=address, username="atelier", password_file=file)


async def test_accepts_the_atelier_user_and_suits_the_queue(address: str, tmp_path: Path) -> None:
    redis = await connect(given(address, tmp_path, f"{PASSWORD}\n"))
    try:
        facts = await redis.info()
        assert facts["aof_enabled"] == 1
        assert facts["maxmemory_policy"] == "noeviction"
    finally:
        await redis.aclose()


async def test_other_credentials_are_rejected(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"username-password|Authentication required|let us in"):
        await connect(given(address, tmp_path, "a guess"))
    with pytest.raises(ConfigError, match=r"username-password|Authentication required|let us in"):
        await connect(RedisSettings(url=address))


async def test_redis_pod_rereads_its_changed_secret(
    address: str, pod: Path, tmp_path: Path
) -> None:
    """Both passwords are valid while the Secret has two; no restart is needed."""
    secret = pod / "password"

    async def lets_in(password: str) -> bool:
        try:
            redis = await connect(given(address, tmp_path, password))
        except ConfigError:
            return False
        await redis.aclose()
        return True

    async def shuts_out(password: str) -> bool:
        return not await lets_in(password)

    secret.write_text(f"{PASSWORD}\nnext one\n")
    await eventually(lambda: lets_in("next one"))
    assert await lets_in(PASSWORD)
    secret.write_text("next one\n")
    await eventually(lambda: shuts_out(PASSWORD))
    assert await lets_in("next one")
    secret.write_text(f"{PASSWORD}\n")
    await eventually(lambda: lets_in(PASSWORD))


def test_user_rights_match_the_documentation() -> None:
    (pods,) = pods_of(overlay("cpu-demo"), "redis")
    (line,) = [
        line.strip()
        for line in (REPOSITORY / "docs" / "operations" / "redis.md").read_text().splitlines()
        if line.startswith("user atelier ")
    ]
    assert line.replace(">PASSWORD ", "${digests}") in pods.container["command"][-1]


def test_aof_is_on_a_disk_with_memory_for_rewrites() -> None:
    (pods,) = pods_of(overlay("cpu-demo"), "redis")
    config = named(overlay("cpu-demo"), "ConfigMap", "atelier-redis")["data"]["valkey.conf"]
    options = dict(
        line.split(maxsplit=1) for line in config.splitlines() if line[:1] not in ("", "#")
    )
    (claim,) = pods.owner["spec"]["volumeClaimTemplates"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pods.container["volumeMounts"]}
    assert mounts[options["dir"]] == claim["metadata"]["name"]
    assert int(options["port"]) == pods.ports["redis"]
    limit = pods.container["resources"]["limits"]["memory"]
    assert 2 * int(options["maxmemory"].removesuffix("gb")) <= int(limit.removesuffix("Gi"))


def test_configuration_matches_embedded_redis() -> None:
    config = named(overlay("cpu-demo"), "ConfigMap", "atelier-redis")["data"]["valkey.conf"]
    lines = [line.split(maxsplit=1) for line in config.splitlines() if line[:1] not in ("", "#")]
    options = {name: value.strip('"') for name, value in lines}
    flags = _options(Path("folder"), Path("socket"))
    embedded = {
        name.removeprefix("--"): value for name, value in zip(flags[::2], flags[1::2], strict=True)
    }
    for name in ("port", "unixsocket", "unixsocketperm", "dir"):  # location and access differ
        del embedded[name]
    assert embedded.items() <= options.items()
    assert options.keys() - embedded.keys() == {"port", "dir", "maxmemory", "aclfile"}
