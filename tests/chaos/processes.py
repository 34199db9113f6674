"""Supervised processes that are restarted after every exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from deploy.exit_codes import EXIT_CONFIG
from deploy.local.embedded_redis import LAUNCH
from tests.chaos.history import Exit
from tests.chaos.invariants import DRAINED_S
from tests.chaos.plan import Kind

MARK = "CHAOS_RUN"
LOOK_EVERY_S = 0.02
PAUSE_S = 0.2
"""Seconds before a restart."""


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float, what: str) -> None:
    """Wait until a condition holds. Raises: TimeoutError: names the condition."""
    end = time.monotonic() + deadline_s
    while not await condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s:g} s: {what}")
        await asyncio.sleep(LOOK_EVERY_S)


NO_STORE = "store.url: cannot open"
"""Error of a process that starts while the store's folder is a file."""


class Process:
    """A process of the system, across its restarts.

    Args:
        is_ready: whether the latest run, with this log, is up and handles signals.
        on_exit: called at the end of each run.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        is_ready: Callable[[Path], Awaitable[bool]],
        on_exit: Callable[[Exit], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), *command]
        self._env = dict(env)
        self._folder = folder
        self._is_ready = is_ready
        self._on_exit = on_exit
        self._pass_fds = tuple(pass_fds)
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._act: tuple[Kind, float] | None = None
        self._is_wanted = True
        self.turn = asyncio.Lock()
        """Held while an action affects the process, so that actions do not overlap."""

    @property
    def log(self) -> Path:
        """Log of the latest run."""
        return self._folder / f"{self.name}.{self._lives}.log"

    async def first_ready(self) -> bool:
        """Like `ready`. Raises: RuntimeError: the first run has ended."""
        if self._lives > 1:
            log_text = (self._folder / f"{self.name}.1.log").read_text(errors="replace")
            raise RuntimeError(f"{self.name} does not start: {log_text}")
        return await self.ready()

    async def ready(self) -> bool:
        return self._runs and await self._is_ready(self.log)

    async def has_drained(self) -> bool:
        """Whether a `drain` has completed."""
        return not (self._runs and self._act)

    @property
    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def keep(self) -> None:
        """Start the process repeatedly until `drain_for_good`."""
        while self._is_wanted:
            self._start()
            await self._end()
            await asyncio.sleep(PAUSE_S if self._is_wanted else 0)

    def _start(self) -> None:
        self._lives += 1
        self._act = None
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self._pass_fds,
                start_new_session=True,
            )

    async def _end(self) -> None:
        assert self._process is not None
        while (code := self._process.poll()) is None:
            if self._act and self._act[0] is Kind.DRAIN and self._waited_s > 2 * DRAINED_S:
                self._process.kill()  # reported, because the exit code is not 0
            await asyncio.sleep(LOOK_EVERY_S)
        act = self._act[0] if self._act else None
        if code == EXIT_CONFIG and NO_STORE in self.log.read_text(errors="replace"):
            act = act or Kind.BREAK  # the store was broken at its start
        self._on_exit(Exit(self.name, code, act, self._waited_s))

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._act[1] if self._act else 0.0

    def kill(self) -> None:
        self._signal(Kind.KILL, signal.SIGKILL)

    def drain(self) -> None:
        self._signal(Kind.DRAIN, signal.SIGTERM)

    def drain_for_good(self) -> None:
        self._is_wanted = False
        self.drain()

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _signal(self, kind: Kind, number: signal.Signals) -> None:
        was_killed = self._act and self._act[0] is Kind.KILL
        if self._runs and not was_killed:  # a large process takes a moment to exit
            self._act = (kind, time.monotonic())
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        if self._runs:
            assert self._process is not None
            self._process.send_signal(number)


def marked(mark: str) -> list[str]:
    """Command lines of a run's processes, except this process and zombies."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if is_ours and int(folder.name) != os.getpid():
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                commands.append(f"{folder.name} {words.decode(errors='replace')}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or of another user
    return commands
