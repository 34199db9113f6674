"""Collection of some files only, in a given order. A pytest plugin (`-p tests.gate.files`).

`--files FILE` names a list of test files. Where they are given as arguments instead, the process
that controls the others imports the `conftest.py` of each of them, and JAX and torch with them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

Files = pytest.StashKey[dict[Path, int]]()
"""Chosen files and the folders above them, with their places in the list."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--files", metavar="FILE", help="text file: a test file in each line")


def pytest_configure(config: pytest.Config) -> None:
    """Read the list."""
    path = config.getoption("files")
    files = [config.rootpath / line for line in Path(path).read_text().split("\n")] if path else []
    places: dict[Path, int] = {}
    for place, file in enumerate(files):
        for part in (file, *file.parents):
            places.setdefault(part, place)
    config.stash[Files] = places


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out all other files and folders."""
    places = config.stash[Files]
    return True if places and collection_path not in places else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by their files' places."""
    places = config.stash[Files]
    items.sort(key=lambda item: places.get(item.path, 0))
