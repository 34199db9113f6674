"""Runs `atelier up` as a process, and reads its output and HTTP API."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Thread

from redis import Redis

from deploy.local import processes as ours
from service.jobs.redis import keys
from tests.conftest import COMPILED

START_S = 600
"""Time until a system is ready: JAX loads and compiles on a busy machine with two cores."""
DEADLINE_S = 60
"""Time-out of all other waits."""
POLL_S = 0.05

ATELIER = (sys.executable, "-m", "atelier")
READY = re.compile(r"Atelier is ready at (\S+)")


def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until another process meets a condition. Raises: AssertionError: the deadline passed."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(POLL_S)


def children(pid: int) -> list[int]:
    """Ids of the processes whose parent is `pid`."""
    return [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _ppid(stat) == pid
    ]


def _ppid(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return None


@contextmanager
def queue_of(state: Path) -> Iterator[Redis]:
    """Connect to the embedded Redis of a running system with that folder."""
    with Redis.from_url(f"unix://{state}/redis/redis.sock", decode_responses=True) as redis:
        yield redis


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def environment() -> dict[str, str]:
    """Environment for a system: no ATELIER_ variables, and one device instead of the tests'
    several."""
    prefixes = ("ATELIER_", "JAX_NUM_CPU_DEVICES")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)} | {
        "JAX_PLATFORMS": "cpu"
    }


TRAPS = ("redis.py", "json.py", "jax.py", "service.py", "models/__init__.py", "workers/__init__.py")
"""Files in a system's working directory that are named like modules it imports."""
LURES = ("atelier/docs", "deploy/cli")
"""Folders in the working directory that are named like packages, as in a clone's parent."""


def set_traps(folder: Path) -> Path:
    """Create a working directory whose Python files end any process that runs them."""
    for name in LURES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in TRAPS:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('{name} of the working directory was run')\n")
    return folder


class System:
    """Runs `atelier up` on a free port with its own state folder and a shared compilation cache.
    Its working directory is full of traps."""

    command: Sequence[str] = (*ours.ATELIER, "up")
    surroundings = staticmethod(ours.importing_atelier)
    """Makes the environment of `command` from an environment without settings."""

    def __init__(self, state: Path, *arguments: str, **settings: str) -> None:
        variables = {"ATELIER_COMPILE_CACHE": os.environ[COMPILED]} | settings
        self.folder = set_traps(state.with_name(f"{state.name}-traps"))
        self.process = subprocess.Popen(
            [*self.command, "--port", "0", "--state", str(state), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.surroundings(environment() | variables),
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._news = Condition()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()

    def wait_for(
        self, pattern: str | re.Pattern[str], deadline_s: float = START_S
    ) -> re.Match[str]:
        """Wait for the first match in the output. Raises: AssertionError: with the full output."""

        def first_match() -> re.Match[str] | None:
            return next(
                (line_match for line in self.lines if (line_match := re.search(pattern, line))),
                None,
            )

        with self._news:
            self._news.wait_for(
                lambda: first_match() or self.process.poll() is not None, deadline_s
            )
            match = first_match()
        assert match, f"{pattern} never came in:\n" + "\n".join(self.lines)
        return match

    @property
    def url(self) -> str:
        """Address of the system once it is ready."""
        return self.wait_for(READY)[1]

    def child(self, command: str) -> int:
        """Id of the first child process whose command line contains `command`."""
        matches = [pid for pid in children(self.process.pid) if command in command_line(pid)]
        assert matches, f"no {command!r} among the children"
        return matches[0]

    def kill_pool(self, state: Path, job_id: str) -> bool:
        """Kill the pool during a job whose lease is expired at once; False if the job has ended."""
        pool, job = self.child("worker"), keys.job(job_id)
        os.kill(pool, signal.SIGSTOP)
        with queue_of(state) as redis:
            is_running = redis.hget(job, "state") == "running"

            def is_back() -> bool:
                redis.zadd(keys.LEASES, {job_id: 0}, xx=True)
                return redis.hget(job, "state") == "queued"

            if is_running:
                until(is_back, "its lease lapses")
        os.kill(pool, signal.SIGKILL if is_running else signal.SIGCONT)
        return is_running

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the exit code. Raises: TimeoutExpired."""
        code = self.process.wait(deadline_s)
        self._reader.join(deadline_s)
        return code

    def close(self) -> None:
        """Stop the process, regardless of its state."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
