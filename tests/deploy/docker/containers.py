"""Services of docker-compose.yml, each in its image's root: what an engine would run."""

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
"""Until a pool has compiled its model, on a busy machine of two cores."""
POLL_S = 1.0
HOSTS = "127.0.0.1 localhost redis frontend\n"
"""Names that compose's own resolver would know."""


@dataclass
class Container:
    image: Image
    service: Mapping[str, Any]
    mounts: list[Mount]
    process: subprocess.Popen[str]
    log: Path

    @property
    def health(self) -> list[str]:
        """Command of its health check: compose's before the image's."""
        told = self.service.get("healthcheck", {}).get("test", ["CMD", *self.image.health])
        return list(told[1:])


class Containers:
    """Those that were started, until they are all stopped, the last one first."""

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
        mounts += [("", place, "tmpfs") for place in service.get("tmpfs", ())]
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
        """As `docker compose exec` does: the exit code, and what was printed."""
        container = self._started[name]
        read_only = container.service["read_only"]
        return container.image.machine.run(*command, mounts=container.mounts, read_only=read_only)

    def wait_until_healthy(self, name: str) -> None:
        """Raises: AssertionError: it ended, or took too long; with its log."""
        container = self._started[name]
        until = time.monotonic() + START_S
        while (said := self.execute(name, *container.health))[0]:
            running = container.process.poll() is None and time.monotonic() < until
            assert running, f"{name}: {said[1]}\n{container.log.read_text()}"
            time.sleep(POLL_S)

    def volume(self, name: str) -> Path:
        return self._folder / name

    def _mount(self, machine: Machine, source: str, target: str, how: str) -> Mount:
        """A new volume takes the owner of the folder that it is mounted over."""
        place = machine.root / target.lstrip("/")
        at = compose.host_path(source) if compose.is_path(source) else self.volume(source)
        if not compose.is_path(source) and not at.exists():
            at.mkdir(parents=True)
            shutil.copystat(place, at)
            os.chown(at, place.stat().st_uid, place.stat().st_gid)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(exist_ok=True) if at.is_dir() else place.touch()
        return str(at), target, how

    def _redis(self, service: Mapping[str, Any]) -> Image:
        """The server that the tests embed stands in for the image's."""
        machine = Machine.base(self._folder / "redis-root")
        programs, data = machine.root / "opt/bin", machine.root / "data"
        programs.mkdir(), data.mkdir()
        shutil.copy(server_program(), programs / service["command"][0])
        user, group = map(int, service["user"].split(":"))
        os.chown(data, user, group)
        return Image(replace(machine, user=user, environment={"PATH": f"/opt/bin:{PATH}"}))

    def _stop(self, container: Container) -> int:
        """As `docker compose stop`: SIGTERM, and SIGKILL when its grace period is over."""
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
