"""CPU time of each test: of its process, with all threads, and of the children that it waited for.

A pytest plugin (`-p tests.gate.cpu_time`). CPU-seconds say what a test costs on any machine,
however busy it is; wall time does not.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COLLECTING, ENDING = "(collecting)", "(ending)"
"""Names under which the time until the first test is counted, and what the end of a process's last
test takes: fixtures of the session end then, and the systems that they have started."""


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have been waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTimes:
    """The plugin of one process: measures in each worker, and sums up where results arrive."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_test: dict[str, float] = defaultdict(float)
        self._last = 0.0
        self._is_last_test = False

    def pytest_collection_finish(self) -> None:
        """Count what was spent before the first test."""
        self._last = cpu_seconds()
        output = getattr(self.config, "workeroutput", None)
        if output is None:
            self.by_test[COLLECTING] += self._last
        else:
            output["cpu_s_collecting"] = self._last

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Note whether fixtures of the session end with this test."""
        self._is_last_test = nextitem is None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        """Attach the time since the last report of this process, and what it belongs to."""
        report = yield
        now = cpu_seconds()
        is_ending = self._is_last_test and report.when == "teardown"
        report.cpu_s = {ENDING if is_ending else report.nodeid: now - self._last}
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum up; of workers' reports in the process that controls them."""
        if "workerinput" not in vars(self.config):
            for name, seconds in getattr(report, "cpu_s", {}).items():
                self.by_test[name] += seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker spent on collecting."""
        self.by_test[COLLECTING] += getattr(node, "workeroutput", {}).get("cpu_s_collecting", 0.0)

    def pytest_sessionfinish(self) -> None:
        """Write the file that `--cpu-times` names."""
        path = self.config.getoption("cpu_times")
        if path and "workerinput" not in vars(self.config):
            times = {name: round(seconds, 3) for name, seconds in self.by_test.items()}
            Path(path).write_text(json.dumps(times, indent=0))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="JSON file: CPU-seconds of each test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes(config), "cpu-times")
