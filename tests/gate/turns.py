"""Test processes that claim groups of tests. A pytest plugin (`-p tests.gate.turns`).

All processes of a run share the folder of `--turns` with its `groups.json`. An idle process claims
the next group by creating a file. It imports only the test files of its groups, whereas
pytest-xdist imports all of them in each process. If a process is killed, the others continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.gate.groups import Group

GROUPS, CLAIM, RUNNING = "groups.json", "claimed-{}", "running-{}"
"""Files of the folder: all groups, one file per claimed group, and one file per process with its
running test."""


def write(folder: Path, groups: Sequence[Group]) -> None:
    """Write the groups of a run."""
    (folder / GROUPS).write_text(json.dumps([asdict(group) for group in groups]))


def read(folder: Path) -> list[Group]:
    """Read the groups of a run."""
    return [
        Group(tuple(entry["files"]), entry["family"])
        for entry in json.loads((folder / GROUPS).read_text())
    ]


def running(folder: Path, process: int) -> str:
    """Return the last test that a process started."""
    path = folder / RUNNING.format(process)
    return path.read_text() if path.exists() else "its first test"


class Turns:
    """Pytest plugin of one test process, which claims groups of tests."""

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._running = folder / RUNNING.format(process)
        self._groups = read(folder)
        self._modules: dict[str, pytest.Collector] = {}
        self._items: dict[str, Sequence[pytest.Item]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the test files without importing them."""
        files = dict.fromkeys(file for group in self._groups for file in group.files)
        for module in session.perform_collect([*files], genitems=False):
            assert isinstance(module, pytest.Collector)
            folder = session.config.invocation_params.dir
            self._modules[str(module.path.relative_to(folder))] = module
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests of each group that this process claims."""
        groups = self._claimed(session)
        items, is_shared = next(groups, ([], False))
        while items:
            following: tuple[Sequence[pytest.Item], bool] = ([], False)
            for item, after in zip(items, (*items[1:], None), strict=True):
                if after is None:
                    following = next(groups, following)
                    # Session fixtures end with a group that shares one of them.
                    after = None if is_shared else next(iter(following[0]), None)
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
            items, is_shared = following
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the running test, in case it kills the process."""
        self._running.write_text(nodeid)

    def _claimed(self, session: pytest.Session) -> Iterator[tuple[Sequence[pytest.Item], bool]]:
        """Yield the tests of claimed groups, and whether each group shares a session fixture."""
        for number, group in enumerate(self._groups):
            try:
                (self._folder / CLAIM.format(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            tests = [item for file in group.files for item in self._tests(session, file)]
            if items := [item for item in tests if group.has(item.name)]:
                yield items, len(group.files) > 1

    def _tests(self, session: pytest.Session, file: str) -> Sequence[pytest.Item]:
        """Return the selected tests of a file, imported at the first call."""
        if file not in self._items:
            items = [*session.genitems(self._modules[file])]
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=items
            )
            self._items[file] = items
            session.items += items
            session.testscollected += len(items)
        return self._items[file]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", metavar="FOLDER", help="folder that the test processes share")
    parser.addoption("--process", type=int, default=0, help="number of this test process")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("turns"):
        config.pluginmanager.register(Turns(Path(folder), config.getoption("process")), "turns")
