"""A running `atelier up`, as its user has it: a process, what it prints, and HTTP."""

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
"""Until the system is ready: loading JAX and compiling, on a busy machine of two cores."""
DEADLINE_S = 60
"""For anything else that is awaited."""
POLL_S = 0.05

ATELIER = (sys.executable, "-m", "atelier")
READY = re.compile(r"Atelier is ready at (\S+)")


def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for another process. Raises: AssertionError naming what never came."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(POLL_S)


def children(pid: int) -> list[int]:
    """Processes whose parent is that one."""
    return [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _ppid(stat) == pid
    ]


def _ppid(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return None


@contextmanager
def queue_of(state: Path) -> Iterator[Redis]:
    """The embedded Redis of a running system with that folder."""
    with Redis.from_url(f"unix://{state}/redis/redis.sock", decode_responses=True) as redis:
        yield redis


def is_alive(pid: int) -> bool:
    """Whether there is such a process, a zombie not counted."""
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
    """Of a system: no settings of ours, and one device, not the several that tests have."""
    own = ("ATELIER_", "JAX_NUM_CPU_DEVICES")
    return {name: v for name, v in os.environ.items() if not name.startswith(own)} | {
        "JAX_PLATFORMS": "cpu"
    }


TRAPS = ("redis.py", "json.py", "jax.py", "service.py", "models/__init__.py", "workers/__init__.py")
"""In the folder that a system is started in: files with the names of modules that it imports."""
LURES = ("atelier/docs", "deploy/cli")
"""And folders of such names, as a clone's parent has one."""


def set_traps(folder: Path) -> Path:
    """A working directory in which every process ends that runs a Python file of it."""
    for name in LURES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in TRAPS:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('{name} of the working directory was run')\n")
    return folder


class System:
    """`atelier up` with these arguments, on a free port, its state in a folder of its own but for
    what is compiled. Its working directory is full of traps."""

    command: Sequence[str] = (*ours.ATELIER, "up")
    surroundings = staticmethod(ours.importing_ours)
    """Makes the environment of `command` from one without settings."""

    def __init__(self, state: Path, *arguments: str, **settings: str) -> None:
        own = {"ATELIER_COMPILE_CACHE": os.environ[COMPILED]} | settings
        self.folder = set_traps(state.with_name(f"{state.name}-traps"))
        self.process = subprocess.Popen(
            [*self.command, "--port", "0", "--state", str(state), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.surroundings(environment() | own),
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
        """The first match in what it prints. Raises: AssertionError with all that it printed."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines if (m := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or self.process.poll() is not None, deadline_s)
            match = found()
        assert match, f"{pattern} never came in:\n" + "\n".join(self.lines)
        return match

    @property
    def url(self) -> str:
        """Its address, once it is ready."""
        return self.wait_for(READY)[1]

    def child(self, command: str) -> int:
        """Id of the first child whose command line has these words."""
        found = [pid for pid in children(self.process.pid) if command in command_line(pid)]
        assert found, f"no {command!r} among the children"
        return found[0]

    def kill_pool(self, state: Path, job_id: str) -> bool:
        """Kill its pool in the midst of a job, whose lease lapses at once; False: it has ended."""
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
        """Its exit code. Raises: TimeoutExpired."""
        code = self.process.wait(deadline_s)
        self._reader.join(deadline_s)
        return code

    def close(self) -> None:
        """End it, however it stands."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
