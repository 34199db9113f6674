"""Processes of one slice on this machine, each with its own virtual devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.local.processes import dies_with_parent
from tests import coarse
from tests.workers.polling import until
from tests.workers.pool_process import START_S

POOL = "one"
WORKER, STARVING = "tests.workers.paced", "tests.workers.multihost.out_of_memory"


class SliceProcesses:
    """Processes of `atelier worker` that serve the pool `POOL` on `hosts` hosts.

    A test can hold their images.

    Args:
        config: File of the settings.
        devices: Number of devices of each process.
        starves: Index of the process that runs out of memory midway.
        late: Start the other processes long after the first.
    """

    def __init__(
        self,
        config: Path,
        folder: Path,
        hosts: int,
        devices: int,
        *,
        starves: int | None = None,
        late: bool = False,
    ) -> None:
        folder.mkdir()
        self.config = config
        self._logs = [folder / f"{index}.log" for index in range(hosts)]
        variables = {"ATELIER_CONFIG": str(config), "JAX_NUM_CPU_DEVICES": str(devices)}
        self._environment = {**os.environ, **variables, "XLA_FLAGS": coarse.FLAGS}
        self._reserved = ExitStack()
        self._port = self._reserved.enter_context(reserved_port())
        self._starves = starves
        self._processes: list[subprocess.Popen[bytes]] = []
        for index in range(1 if late else hosts):
            self._start(index)

    def _start(self, index: int) -> None:
        main = STARVING if index == self._starves else WORKER
        slice_of = ("--coordinator", f"127.0.0.1:{self._port}", "--process-id", str(index))
        options = (*slice_of, "--num-processes", str(len(self._logs)))
        command = [sys.executable, "-m", main, "worker", "--pool", POOL, *options]
        with self._logs[index].open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=dies_with_parent(),
                )
            )

    async def ready(self) -> None:
        if len(self._processes) < len(self._logs):
            await self._alive_until(self._is_met)
            for index in range(len(self._processes), len(self._logs)):
                self._start(index)
        await self._alive_until(lambda: "is ready" in self._logs[0].read_text())

    async def _alive_until(self, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            assert all(process.poll() is None for process in self._processes), self.said
            return condition()

        await until(is_so, START_S)

    def _is_met(self) -> bool:
        """Return whether the first process waits for the others."""
        try:
            socket.create_connection(("127.0.0.1", self._port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def send(self, index: int, number: signal.Signals) -> None:
        self._processes[index].send_signal(number)

    async def exit_codes(self, deadline_s: float) -> list[int]:
        """Wait for all processes, and return their exit codes in order.

        Raises:
            TimeoutError: A process has not ended.
        """
        await until(lambda: all(p.poll() is not None for p in self._processes), deadline_s)
        return [process.returncode for process in self._processes]

    @property
    def said(self) -> str:
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in self._logs if log.exists())

    def end(self) -> None:
        """Kill all processes, regardless of their state."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._reserved.close()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port that no other process gets meanwhile. A server may listen on it."""
    with socket.socket() as reserving:
        reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserving.bind(("127.0.0.1", 0))
        yield reserving.getsockname()[1]
