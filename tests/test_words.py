"""One word for one thing: names that the whole house shares."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.test_arrows import ROOMS, ROOT


def classes(folder: Path) -> dict[str, list[str]]:
    """The files of each class by its name."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(folder)))
    return found


@pytest.mark.parametrize("package", sorted({*ROOMS} - {"atelier"}))
def test_no_class_name_is_given_twice_in_a_package(package: str) -> None:
    found = classes(ROOT / package)
    assert found, "the sources were not found"
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_a_class_name_given_twice_is_found(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Shape: ...\n")
    assert classes(tmp_path) == {"Shape": ["a.py", "b.py"]}
