"""CPU time of each test: of its process with all threads, and of child processes that it waited
for.

A pytest plugin (`-p tests.gate.cpu_time`) that writes a file to the folder of `--written`, an
option of `tests.gate.outcomes`. CPU-seconds measure a test's cost independently of the machine's
load, unlike wall time.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

FILES = "cpu-times-*.json"
COLLECTING, ENDING = "(collecting)", "(ending)"
"""Names for the time before the first test, and for the teardown of a process's last test, which
ends session fixtures and the systems that they started."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have been waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTimes:
    """Pytest plugin that records the CPU time of each test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_test: dict[str, float] = defaultdict(float)
        self._last = 0.0
        self._is_last_test = False

    def pytest_collection_finish(self) -> None:
        """Record the time before the first test."""
        self._count(COLLECTING)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Iterator[None]:
        """Record whether session fixtures end with this test."""
        self._is_last_test = nextitem is None
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the time since the last report."""
        is_ending = self._is_last_test and report.when == "teardown"
        self._count(ENDING if is_ending else report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the recorded CPU times to the file."""
        times = {name: round(seconds, 3) for name, seconds in self._by_test.items()}
        self._path.write_text(json.dumps(times, indent=0))

    def _count(self, name: str) -> None:
        now = cpu_seconds()
        self._by_test[name] += now - self._last
        self._last = now


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("written"):
        path = Path(folder) / FILES.replace("*", str(os.getpid()))
        config.pluginmanager.register(CpuTimes(path), "cpu-times")
