"""Outcomes of a test process, written to a file for its parent process.

A pytest plugin (`-p tests.gate.outcomes`). The file in the folder of `--written` lists failed tests
with the first lines of each error, and files that could not be collected.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

FILES = "outcomes-*.json"
LINES = 3
"""Lines kept of each error."""


@dataclass
class Outcomes:
    """Result of a pytest run."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """First lines of the error of each failed test, by its id."""
    not_collected: list[str] = field(default_factory=list)
    """Files that could not be collected."""

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """Read the file that a process wrote at its end."""
        return cls(**json.loads(path.read_text()))


def first_lines(report: pytest.TestReport) -> str:
    """Return the first lines of a failed test's error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext.strip()
    return "\n".join(text.splitlines()[:LINES])


class Recorder:
    """Pytest plugin that collects reports and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test that failed in any of its phases, or passed."""
        if report.failed:
            self.outcomes.failed.setdefault(report.nodeid, first_lines(report))
        elif report.when == "call" and report.passed:
            self.outcomes.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be collected."""
        if report.failed:
            self.outcomes.not_collected.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the outcomes of the run to the file."""
        self.path.write_text(json.dumps(asdict(self.outcomes)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--written", metavar="FOLDER", help="folder for outcomes and CPU times")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("written"):
        path = Path(folder) / FILES.replace("*", str(os.getpid()))
        config.pluginmanager.register(Recorder(path), "outcomes")
