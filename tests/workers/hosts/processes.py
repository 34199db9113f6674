"""The processes of one slice, on this machine: each with virtual devices of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests import coarse
from tests.workers.polling import until
from tests.workers.pool_process import START_S


class SliceProcesses:
    """`atelier worker` on each of so many hosts, as the settings of `config` have the pool `flux`.

    Args:
        devices: of each process.
    """

    def __init__(self, config: Path, folder: Path, hosts: int, devices: int) -> None:
        folder.mkdir()
        self._logs = [folder / f"{index}.log" for index in range(hosts)]
        own = {"ATELIER_CONFIG": str(config), "JAX_NUM_CPU_DEVICES": str(devices)}
        environment = {**os.environ, **own, "XLA_FLAGS": coarse.FLAGS}
        slice_of = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", str(hosts))
        self._processes: list[subprocess.Popen[bytes]] = []
        for index, log in enumerate(self._logs):
            with log.open("w") as file:
                worker = ("-m", "atelier", "worker", "--pool", "flux")
                command = [sys.executable, *worker, *slice_of, "--process-id", str(index)]
                self._processes.append(
                    subprocess.Popen(command, env=environment, stdout=file, stderr=file)
                )

    async def ready(self) -> None:
        def is_ready() -> bool:
            assert all(process.poll() is None for process in self._processes), self.said
            return "is ready" in self._logs[0].read_text()

        await until(is_ready, START_S)

    def send(self, index: int, number: signal.Signals) -> None:
        self._processes[index].send_signal(number)

    async def exit_codes(self, deadline_s: float) -> list[int]:
        """Of all processes, in order. Raises: TimeoutError: one of them has not ended."""
        await until(lambda: all(p.poll() is not None for p in self._processes), deadline_s)
        return [process.returncode for process in self._processes]

    @property
    def said(self) -> str:
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in self._logs)

    def end(self) -> None:
        """For good, in whatever state they are."""
        for process in self._processes:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
