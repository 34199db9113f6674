"""Child processes that exit with their parent, and whose output is relayed with their names."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from sysconfig import get_path

from service.settings.installation import IMPORT_ROOT

ATELIER = (sys.executable, "-P", "-m", "atelier")
"""Command line of this program, to be started with `importing_atelier`."""
LINE_LIMIT_BYTES = 2**20
"""Maximum length of a child's output line; longer ones are dropped."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def dies_with_parent(death: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the kernel send the child `death` when its parent exits.

    The parent is the *thread* that started the child, so start it from a lasting one. On other
    systems than Linux the function does nothing.
    """
    parent = os.getpid()

    def ask_kernel() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, death)
        if os.getppid() != parent:  # the parent exited in between
            os.kill(os.getpid(), death)

    return ask_kernel


def importing_atelier(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child that imports the same code as this process.

    Nothing is imported from the working folder, even if PYTHONPATH has empty or relative entries.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(IMPORT_ROOT)] if Path(get_path("purelib")) != IMPORT_ROOT else []
    path += [entry for entry in given if Path(entry).is_absolute() and entry not in path]
    return {**environment, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(path)}


class Child:
    """Restartable child process in a separate process group, which Ctrl-C does not reach."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        relay: Callable[[str, str], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._command = command
        self._env = dict(env)
        self._relay = relay
        self._pass_fds = tuple(pass_fds)
        self._process: Process | None = None
        self._unwanted = False

    async def run(self) -> int:
        """Start the process, relay its output, and return its exit code (negative: the signal)."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._env,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            pass_fds=self._pass_fds,
            process_group=0,
            preexec_fn=dies_with_parent(),
            limit=LINE_LIMIT_BYTES,
        )
        if self._unwanted:  # stopped during its start
            self._process.terminate()
        await self._relay_lines(self._process)
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Stop the process permanently: SIGTERM, then SIGKILL after `grace_s`."""
        self._unwanted = True
        if not self._running:
            return
        assert self._process is not None
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self._relay(self.name, f"did not end within {grace_s:.0f} s: killed")
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to the child process."""
        if self._running:
            assert self._process is not None
            self._process.kill()

    @property
    def _running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _relay_lines(self, process: Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the limit; the reader has dropped it
                continue
            if not line:
                return
            self._relay(self.name, line.decode(errors="replace").rstrip())


def ending(code: int) -> str:
    """Describe the exit code of a child process."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
