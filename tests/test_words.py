"""One word for one thing: names that the whole house shares."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
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


NO_BEGINNINGS = {
    *("As", "At", "By", "For", "From", "How", "If", "In", "It", "Its", "None", "Not", "Nothing"),
    *("Of", "On", "That", "To", "What", "When", "Where", "Whether", "Which", "Who", "Why", "With"),
}
"""Words that begin a clause, where a docstring begins with a verb or a noun."""


FIELDS = ast.Assign | ast.AnnAssign


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Line and text of each docstring, and whether it is an attribute's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, text, False
            for before, after in pairwise(node.body):
                match before, after:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        yield after.lineno, text, True


def clauses(source: str) -> list[int]:
    """Lines of docstrings that begin neither with a verb nor with a noun."""
    allowed = {"Whether"}
    return [
        line
        for line, text, is_attribute in docstrings(ast.parse(source))
        if text.split()[0].rstrip(",:.") in NO_BEGINNINGS - (allowed if is_attribute else set())
    ]


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    files = [*(ROOT / package).rglob("*.py")] or [ROOT / f"{package}.py"]
    found = {str(file): clauses(file.read_text("utf-8")) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_a_docstring_that_begins_with_a_clause_is_found() -> None:
    source = 'def f():\n    """Whether it is."""\nx = 1\n"""Whether it is."""\ny = 2\n"""Of x."""\n'
    assert clauses(source) == [6, 2]
