"""Runs services of docker-compose.yml in their images' root folders, as an engine would."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deploy.local.embedded_redis import server_program
from tests.deploy.docker import compose
from tests.deploy.docker.build import Image
from tests.deploy.docker.machine import PATH, Machine, Mount

START_S = 600
"""Time for a pool to compile its model on a busy machine with two cores."""
POLL_S = 1.0
HOSTS = "127.0.0.1 localhost redis frontend\n"
"""Host names that compose's resolver provides."""


@dataclass
class Container:
    image: Image
    service: Mapping[str, Any]
    mounts: list[Mount]
    process: subprocess.Popen[str]
    log: Path

    @property
    def health(self) -> list[str]:
        """Command of the health check: compose's, or else the image's."""
        test = self.service.get("healthcheck", {}).get("test", ["CMD", *self.image.health])
        return list(test[1:])


class Containers:
    """Started containers; on exit they are stopped in reverse order."""

    def __init__(self, images: Mapping[str, Image], folder: Path, network: int) -> None:
        self._images = {f"atelier-{name}": image for name, image in images.items()}
        self._folder = folder
        self._network = network
        self._services = compose.services({})
        self._started: dict[str, Container] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        codes = {name: self._stop(self._started[name]) for name in reversed(self._started)}
        if error is None:
            assert set(codes.values()) == {0}, codes

    def start(self, name: str) -> None:
        service = self._services[name]
        image = self._images.get(service["image"]) or self._redis(service)
        environment = {**image.machine.environment, **service.get("environment", {})}
        machine = replace(image.machine, environment=environment, network=self._network)
        mounts = [self._mount(machine, *volume) for volume in compose.volumes(service)]
        mounts += [("", path, "tmpfs") for path in service.get("tmpfs", ())]
        (machine.root / "etc/hosts").write_text(HOSTS)
        log = self._folder / f"{name}.log"
        with log.open("w") as output:
            command = (*image.entrypoint, *service.get("command", image.command))
            process = machine.start(
                *command, mounts=mounts, read_only=service["read_only"], output=output
            )
        image = replace(image, machine=machine)
        self._started[name] = Container(image, service, mounts, process, log)

    def execute(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command like `docker compose exec`; returns the exit code and the output."""
        container = self._started[name]
        read_only = container.service["read_only"]
        return container.image.machine.run(*command, mounts=container.mounts, read_only=read_only)

    def wait_until_healthy(self, name: str) -> None:
        """Wait for the health check to pass. Raises: AssertionError: the container exited, or did
        not become healthy in time; with its log."""
        container = self._started[name]
        deadline = time.monotonic() + START_S
        while (outcome := self.execute(name, *container.health))[0]:
            running = container.process.poll() is None and time.monotonic() < deadline
            assert running, f"{name}: {outcome[1]}\n{container.log.read_text()}"
            time.sleep(POLL_S)

    def volume(self, name: str) -> Path:
        return self._folder / name

    def _mount(self, machine: Machine, source: str, target: str, how: str) -> Mount:
        """Create a mount; a new volume takes the owner of the folder that it covers."""
        path = machine.root / target.lstrip("/")
        source_path = compose.host_path(source) if compose.is_path(source) else self.volume(source)
        if not compose.is_path(source) and not source_path.exists():
            source_path.mkdir(parents=True)
            shutil.copystat(path, source_path)
            os.chown(source_path, path.stat().st_uid, path.stat().st_gid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if source_path.is_dir() else path.touch()
        return str(source_path), target, how

    def _redis(self, service: Mapping[str, Any]) -> Image:
        """Build a Redis image from the server that the tests embed."""
        machine = Machine.base(self._folder / "redis-root")
        programs, data = machine.root / "opt/bin", machine.root / "data"
        programs.mkdir(), data.mkdir()
        shutil.copy(server_program(), programs / service["command"][0])
        user, group = map(int, service["user"].split(":"))
        os.chown(data, user, group)
        return Image(replace(machine, user=user, environment={"PATH": f"/opt/bin:{PATH}"}))

    def _stop(self, container: Container) -> int:
        """Stop like `docker compose stop`: SIGTERM, then SIGKILL after the grace period."""
        if container.process.poll() is not None:
            return container.process.returncode
        for child in _children(container.process.pid):
            os.kill(child, signal.SIGTERM)
        try:
            return container.process.wait(compose.seconds(container.service["stop_grace_period"]))
        except subprocess.TimeoutExpired:
            container.process.kill()
            return container.process.wait()


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
