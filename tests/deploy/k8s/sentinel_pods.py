"""The three pods of components/redis-sentinel as processes of this machine, each at an address of
its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from deploy.local.embedded_redis import server_program
from tests.deploy.k8s.objects import Pods, environment, named, pods_of
from tests.deploy.k8s.rendering import Object
from tests.service.jobs.servers import free_port

PASSWORD, INTERNAL = "of clients", "0123456789abcdef"
NODES = 3
NAME = "atelier-redis-$1.atelier-redis.$NAMESPACE.svc"
SERVER, SENTINEL = "6379", "26379"
DOWN_AFTER_MS = ("down-after-milliseconds atelier 5000", "down-after-milliseconds atelier 1000")
"""Of the manifests, and here."""

CLIENT = """#!{python} -SE
import os, socket, sys
host, port, user, words = "{host}", "{port}", "", sys.argv[1:]
while words[0].startswith("-"):
    option, value, *words = words
    match option:
        case "--user": user = value
        case "-h": host = value
        case "-p": port = value
with socket.create_connection((host, int(port)), timeout=3) as server:
    lines = server.makefile("rwb")
    for command in (["auth", user, os.environ["VALKEYCLI_AUTH"]], words):
        lines.write(("*%d\\r\\n" % len(command)).encode())
        for word in command:
            lines.write(("$%d\\r\\n%s\\r\\n" % (len(word.encode()), word)).encode())
        lines.flush()
        first = lines.readline()
        if first.startswith(b"-"):
            sys.exit(first.decode())
    if first.startswith(b"*"):
        for _ in range(int(first[1:])):
            size = int(lines.readline()[1:])
            print(lines.read(size + 2).decode().strip())
    elif first.startswith(b"$"):
        print(lines.read(int(first[1:]) + 2).decode())
    else:
        print(first[1:].decode().strip())
"""
"""Replacement of `valkey-cli`, which not every machine has, with its manual's behavior."""


def address(node: int) -> str:
    return f"127.0.0.1{node}"


class SentinelPods:
    """Runs the containers' commands; a pod's addresses and folders stay when it is killed."""

    def __init__(self, objects: tuple[Object, ...], folder: Path) -> None:
        self.objects = objects
        self._folder = folder
        self._server, self._sentinel = str(free_port()), str(free_port())
        self._running: dict[int, list[subprocess.Popen[bytes]]] = {}
        (self.pods,) = pods_of(objects, "redis")
        (folder / "secret").mkdir()
        self.set_passwords(PASSWORD)
        (folder / "secret" / "replication").write_text(f"{INTERNAL}\n")
        for node in range(NODES):
            self._prepare(node)

    def set_passwords(self, *passwords: str) -> None:
        (self._folder / "secret" / "password").write_text("\n".join((*passwords, "")))

    @property
    def password_file(self) -> Path:
        return self._folder / "secret" / "password"

    def settings_of(self, pods: Pods) -> dict[str, str]:
        """Settings of clients: the environment of front ends or workers, moved here."""
        ours = ("ATELIER_REDIS__", "ATELIER_QUEUE__WAIT")
        names = environment(self.objects, pods).items()
        return {name: self._moved(value) for name, value in names if name.startswith(ours)}

    def _moved(self, text: str, node: int = 0) -> str:
        """Move addresses, ports and the pod's mounts."""
        home = self._folder / str(node)
        mounts = {"/etc/valkey": home / "etc", "/data": home / "data", "/tmp": home / "tmp"}
        mounts |= {"/run/secrets/atelier-redis": self._folder / "secret"}
        # one pass each, and /tmp first: the folder may be in it
        for path in sorted(mounts, reverse=True):
            text = text.replace(path, f"<{path[1:]}>")
        for path, place in mounts.items():
            text = text.replace(f"<{path[1:]}>", str(place))
        for other in range(NODES):
            text = text.replace(f"atelier-redis-{other}.atelier-redis.atelier.svc", address(other))
        text = text.replace(NAME, address(0)[:-1] + "$1")
        for port in (SERVER, SENTINEL):
            text = text.replace(f"port {port}\n", f"bind {address(node)}\nport {port}\n")
        return (
            text.replace(*DOWN_AFTER_MS)
            .replace(SENTINEL, self._sentinel)
            .replace(SERVER, self._server)
        )

    def _prepare(self, node: int) -> None:
        home = self._folder / str(node)
        for name in ("etc", "data", "tmp", "bin"):
            (home / name).mkdir(parents=True)
        for name, text in named(self.objects, "ConfigMap", "atelier-redis")["data"].items():
            (home / "etc" / name).write_text(self._moved(text, node))
        (home / "bin" / "valkey-server").symlink_to(server_program())
        client = home / "bin" / "valkey-cli"
        places = {"python": sys.executable, "host": address(node), "port": self._server}
        text = CLIENT
        for name, value in places.items():
            text = text.replace(f"{{{name}}}", value)
        client.write_text(text)
        client.chmod(0o755)

    def start(self, node: int) -> None:
        """Start a pod's containers."""
        self._running[node] = [
            self._popen(node, container["command"], container["name"])
            for container in self.pods.containers
        ]

    def _popen(self, node: int, command: list[str], name: str) -> subprocess.Popen[bytes]:
        home = self._folder / str(node)
        with (home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self._moved(part, node) for part in command],
                env=self._environment(node),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, node: int) -> dict[str, str]:
        path = f"{self._folder}/{node}/bin:{os.environ['PATH']}"
        return {"PATH": path, "NAMESPACE": "atelier", "HOSTNAME": f"atelier-redis-{node}"}

    def run(self, node: int, command: list[str]) -> int:
        """Run a probe or a hook of the container of the server; return its exit code."""
        return self._popen(node, command, "hook").wait()

    def kill(self, node: int) -> None:
        """Kill a pod without notice, as when its machine fails."""
        for process in self._running.pop(node, []):
            os.killpg(process.pid, signal.SIGKILL)  # with the process that keeps the users
            process.wait()

    def primary(self) -> int | None:
        """Node that most running Sentinels name as the primary."""
        named_ = [self._named(node) for node in self._running]
        most = max(set(named_), key=named_.count)
        return most if named_.count(most) > NODES // 2 else None

    def _named(self, node: int) -> int | None:
        name = self._told(node, "primary $ordinal").strip()
        return int(name[-1]) if name else None

    def know_each_other(self) -> bool:
        """Whether every Sentinel knows the others and both replicas, and so can fail over."""
        for node in range(NODES):
            lines = self._told(node, "sentinel $ordinal master").split()
            facts = dict(pairwise(lines))
            counts = [facts.get(name) for name in ("num-slaves", "num-other-sentinels")]
            if counts != [str(NODES - 1)] * 2:
                return False
        return True

    def _told(self, node: int, call: str) -> str:
        """Output of a function of common.sh in a pod."""
        script = self._moved(f". /etc/valkey/common.sh; {call}", node)
        variables = self._environment(node)
        command = ["sh", "-c", script]
        return subprocess.run(command, env=variables, capture_output=True, text=True).stdout

    def close(self) -> None:
        for node in [*self._running]:
            self.kill(node)

    def logs(self) -> str:
        """Text of the logs of all pods."""
        return "\n".join(
            f"{file}:\n{file.read_text()}" for file in sorted(self._folder.glob("*/*.log"))
        )


@contextmanager
def sentinel_pods(objects: tuple[Object, ...], folder: Path) -> Iterator[SentinelPods]:
    """Start the three pods; kill them at the end."""
    pods = SentinelPods(objects, folder)
    try:
        for node in range(NODES):
            pods.start(node)
        yield pods
    finally:
        pods.close()
