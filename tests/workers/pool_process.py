"""Worker in a process of its own, to be killed, stopped and drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from deploy.local.processes import dies_with_parent
from tests import coarse
from tests.workers.polling import until

MAIN = """
import logging, sys
from service.settings.settings import Settings
from tests.workers.paced import pace
from workers.pool.process import run_pool
logging.basicConfig(level=logging.INFO)
pace()
sys.exit(run_pool(Settings(), sys.argv[1]))
"""
START_S = 240
"""Timeout of a start: JAX, a checkpoint and its programs, on a busy machine of two cores."""


class PoolProcess:
    def __init__(self, config: Path, log: Path, pool: str = "flux", main: str = MAIN) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", main, pool],
                env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
                | {"XLA_FLAGS": coarse.FLAGS, "ATELIER_CONFIG": str(config)},
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=dies_with_parent(),
            )

    async def ready(self) -> None:
        await until(lambda: "is ready" in self.said, START_S)

    async def exit_code(self) -> int:
        await until(lambda: self._process.poll() is not None, START_S)
        return self._process.returncode

    @property
    def said(self) -> str:
        log = self._log.read_text()
        assert self._process.poll() in (None, 0, -signal.SIGKILL), log
        return log

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """Kill the process, regardless of its state."""
        self._process.kill()
        self._process.wait()
