"""An installation whose front ends and pools have two versions: processes on one Redis."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from deploy.local import processes as ours
from deploy.local.embedded_redis import embedded
from tests import coarse
from tests.conftest import COMPILED
from tests.e2e.system import START_S, environment, until

MODEL = "tiny"
POOL = {"model": MODEL, "slots": 2, "drain_s": 1, "snapshot_share": 0.3}
"""The short drain makes pools suspend long jobs; snapshots start with the first steps."""
SETTINGS: Mapping[str, Any] = {
    "server": {"keys": True, "port": 0},
    "queue": {"lease_s": 2, "reap_every_s": 0.5, "affinity_s": 0, "max_events": 4096},
    "limits": {"max_steps": 1000},
    "pools": {MODEL: POOL},
}
"""Settings known to both versions; a process rejects unknown settings."""


@dataclass(frozen=True)
class Version:
    """Folder with a version's code."""

    name: str
    folder: Path


class Process:
    """A front end or pool of a version, with its log."""

    def __init__(
        self, version: Version, log: Path, env: Mapping[str, str], *words: str, fds: tuple[int, ...]
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*ours.ATELIER, *words],
                cwd=version.folder,
                env={**env, "PYTHONPATH": str(version.folder)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                preexec_fn=ours.dies_with_parent(),
            )

    @property
    def said(self) -> str:
        """Return the log. Raises: AssertionError: the process ended by itself."""
        text = self._log.read_text(errors="replace")
        assert self._process.poll() is None, text
        return text

    def end(self, by: signal.Signals) -> None:
        """End the process and wait for its exit."""
        self._process.send_signal(by)
        try:
            self._process.wait(START_S)
        finally:
            self._process.kill()


class Installation:
    """Redis, a store, a front end of each started version, and at most one pool."""

    def __init__(self, folder: Path, checkpoint: Path, started: ExitStack) -> None:
        self._folder, self._started = folder, started
        self.redis_url = started.enter_context(embedded(folder / "state"))
        self.redis = started.enter_context(Redis.from_url(self.redis_url, decode_responses=True))
        model = {"source": str(checkpoint), "dtype": "float32"}
        self._env = _environment(
            {
                "state_dir": str(folder / "state"),
                "compile_cache": os.environ[COMPILED],
                "redis": {"url": self.redis_url},
                "models": {MODEL: model},
                **SETTINGS,
            }
        )
        self.fronts: dict[str, str] = {}
        """Addresses of front ends by version."""
        self.pool: Process | None = None
        self._pool_version: Version | None = None
        self._count = 0
        started.callback(self.end_pool)

    def start_front(self, version: Version) -> None:
        """Start a front end and wait until it answers."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = self._start(version, "serve", "--fd", str(fd := listener.fileno()), fds=(fd,))
            self.fronts[version.name] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._started.callback(process.end, signal.SIGKILL)
        until(lambda: _answers(self.fronts[version.name], process), "a front end", START_S)

    def serve_by(self, version: Version) -> Process:
        """Return a ready pool of this version; a pool of the other version drains first."""
        if self.pool is None or self._pool_version != version:
            self.end_pool(signal.SIGTERM)
            self.pool = pool = self._start(version, "worker", "--pool", MODEL)
            self._pool_version = version
            until(lambda: " is ready" in pool.said, f"a pool of the {version.name}", START_S)
        return self.pool

    def end_pool(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End the pool if it exists."""
        if self.pool is not None:
            self.pool.end(by)
            self.pool = None

    def http(self, front: Version, key: str) -> httpx.Client:
        """Return a client of a version's front end."""
        headers = {"Authorization": f"Bearer {key}"}
        url = self.fronts[front.name]
        return self._started.enter_context(
            httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)
        )

    def _start(self, version: Version, *words: str, fds: tuple[int, ...] = ()) -> Process:
        self._count += 1
        log = self._folder / f"{self._count}-{words[0]}-{version.name}.log"
        return Process(version, log, self._env, *words, fds=fds)


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        f"ATELIER_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
    flags = {"XLA_FLAGS": coarse.FLAGS, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return environment() | texts | flags


def _answers(url: str, process: Process) -> bool:
    """Whether a front end answers. Raises: AssertionError: it has ended."""
    assert process.said is not None
    try:
        return httpx.get(f"{url}/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False
