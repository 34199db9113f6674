"""One term per concept: the glossary, class names, and first words of docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Set
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.test_arrows import ROOMS, ROOT

parsed = lru_cache(maxsize=4_000)(ast.parse)
"""Syntax tree of a source, which several tests walk."""


def classes(folder: Path) -> dict[str, list[str]]:
    """The files of each class by its name."""
    files = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(path.relative_to(folder)))
    return files


@pytest.mark.parametrize("package", sorted({*ROOMS} - {"atelier"}))
def test_class_names_are_unique_in_a_package(package: str) -> None:
    by_name = classes(ROOT / package)
    assert by_name, "the sources are missing"
    assert {name: files for name, files in by_name.items() if len(files) > 1} == {}


def test_duplicate_class_name_is_detected(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("class Shape: ...\n")
    assert classes(tmp_path) == {"Shape": ["a.py", "b.py"]}


NO_BEGINNINGS = {
    *("As", "At", "By", "For", "From", "How", "If", "In", "It", "Its", "None", "Not", "Nothing"),
    *("Of", "On", "That", "To", "What", "When", "Where", "Whether", "Which", "Who", "Why", "With"),
}
"""Words that begin a clause, where a docstring begins with a verb or a noun."""


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
        for line, text, is_attribute in docstrings(parsed(source))
        if text.split()[0].rstrip(",:.") in NO_BEGINNINGS - (allowed if is_attribute else set())
    ]


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    files = [*(ROOT / package).rglob("*.py")] or [ROOT / f"{package}.py"]
    by_file = {str(file): clauses(file.read_text("utf-8")) for file in files}
    assert {file: lines for file, lines in by_file.items() if lines} == {}


def test_a_docstring_that_begins_with_a_clause_is_found() -> None:
    source = 'def f():\n    """Whether it is."""\nx = 1\n"""Whether it is."""\ny = 2\n"""Of x."""\n'
    assert clauses(source) == [6, 2]


GLOSSARY: dict[str, Any] = tomllib.loads(
    (ROOT / "docs" / "reference" / "glossary.toml").read_text("utf-8")
)
RETIRED = {*GLOSSARY["words"]} | {
    word for term in GLOSSARY["term"] for word in term.get("retired", ())
}
WORDS = re.compile(rf"(?<![\w`./_-])(?:{'|'.join(sorted(RETIRED))})(?![\w`/_-])", re.IGNORECASE)
FOLDERS = ("deploy", "examples", "lab", "models", "service", "tests", "tools", "workers")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment and docstring."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    yield from ((line, text) for line, text, _ in docstrings(parsed(source)))


def retired_words(source: str) -> list[str]:
    """Retired words in the comments and docstrings of a source, each with its line."""
    if not WORDS.search(source):
        return []
    return [f"{line}: {word}" for line, text in prose(source) for word in WORDS.findall(text)]


RETIRED_IN_NAMES = RETIRED | {*GLOSSARY["names"]}
RETIRED_IN_TESTS = RETIRED_IN_NAMES | {*GLOSSARY["tests"]}
SUFFIXES = (".css", ".html", ".js", ".lua", ".md", ".mjs", ".py", ".toml", ".txt", ".yaml")


def has_word(name: str, words: Set[str]) -> bool:
    """Return whether a name contains one of the words, apart from its underscores."""
    is_kept = name in GLOSSARY["kept"]
    return not is_kept and not words.isdisjoint(re.split(r"[\W_]+", name.lower()))


def retired_names(source: str) -> list[str]:
    """Names of tests, attributes and fields that contain retired words, each with its line."""
    named = []
    for node in ast.walk(parsed(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_") and has_word(name, RETIRED_IN_TESTS):
                    named.append((node.lineno, name))
            case ast.Attribute(attr=name, ctx=ast.Store()) if has_word(name, RETIRED_IN_NAMES):
                named.append((node.lineno, name))
            case ast.ClassDef():
                named += [
                    (entry.lineno, entry.target.id)
                    for entry in node.body
                    if isinstance(entry, ast.AnnAssign)
                    and isinstance(entry.target, ast.Name)
                    and has_word(entry.target.id, RETIRED_IN_NAMES)
                ]
    return [f"{line}: {name}" for line, name in sorted(named)]


def retired_identifiers(source: str, *, parameters: bool) -> list[str]:
    """Retired names that a source binds, each with its line.

    Args:
        parameters: whether to include parameters of functions.
    """
    names, classes = {*GLOSSARY["identifiers"]}, {*GLOSSARY["classes"]}
    bound = []
    for node in ast.walk(parsed(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if name in names:
                bound.append(f"{node.lineno}: {name}")
            case ast.arg(arg=name) if parameters and name in names:
                bound.append(f"{node.lineno}: {name}")
            case ast.ClassDef(name=name) if name in classes:
                bound.append(f"{node.lineno}: {name}")
    return bound


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_has_no_retired_words(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, "the sources are missing"
    by_file = {}
    for file in files:
        source = file.read_text("utf-8")
        # Tests name parameters in their ids.
        names = retired_identifiers(source, parameters=folder not in ("tests", "lab"))
        names += retired_names(source)
        by_file[str(file.relative_to(ROOT))] = [*retired_words(source), *names]
    assert {file: lines for file, lines in by_file.items() if lines} == {}


@pytest.mark.parametrize("folder", (*FOLDERS, "docs"))
def test_file_names_have_no_retired_words(folder: str) -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*")]
    named = [path for path in files if path.suffix in SUFFIXES and "node_modules" not in path.parts]
    assert named, "the files are missing"
    assert [str(path) for path in named if has_word(path.stem, RETIRED_IN_NAMES)] == []


def test_documents_have_no_retired_words() -> None:
    files = [
        *ROOT.glob("*.md"),
        *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
    ]
    files += (ROOT / "docs").rglob("*.md")
    by_file = {
        str(file.relative_to(ROOT)): WORDS.findall(without_code(file.read_text("utf-8")))
        for file in files
        if "node_modules" not in file.parts and file.name != "glossary.md"
    }
    assert {file: words for file, words in by_file.items() if words} == {}


CONFIGURATION = (
    "*.yaml",
    "*.yml",
    "*.toml",
    "*.conf",
    "*.env",
    "*.Dockerfile",
    "Makefile",
    "*.lua",
)
"""Patterns of files whose comments are read, too."""


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of the comments of a configuration file or a Lua script."""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.search(r"(?:^|\s)(?:#+|--) (.*)", line):
            yield number, match[1]


def test_configuration_has_no_retired_words() -> None:
    folders = [ROOT / folder for folder in (*FOLDERS, ".github")]
    files = [path for pattern in CONFIGURATION for path in ROOT.glob(pattern)]
    files += [path for each in folders for pattern in CONFIGURATION for path in each.rglob(pattern)]
    by_file = {
        str(file.relative_to(ROOT)): [
            f"{line}: {word}"
            for line, text in comments(file.read_text("utf-8"))
            for word in WORDS.findall(text)
        ]
        for file in files
        if "node_modules" not in file.parts
    }
    assert {file: words for file, words in by_file.items() if words} == {}


def without_code(text: str) -> str:
    """A document without its code blocks, code spans and link targets."""
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)


def test_retired_words_are_found() -> None:
    source = '"""A lever beside it."""\nclass Told: ...\ndef f(one):\n    found = one  # a door\n'
    assert retired_words(source) == ["4: door", "1: lever", "1: beside"]
    assert retired_identifiers(source, parameters=True) == ["2: Told", "3: one", "4: found"]
    assert retired_identifiers("def f(one): ...", parameters=False) == []
    source = "class A:\n    told: int\n    def test_a_door(self):\n        self.said = told = 1\n"
    assert retired_names(source) == ["2: told", "3: test_a_door", "4: said"]
    assert retired_names("def test_tolerance(): ...\nx.beside_bytes = 1") == []
    assert [*comments("a: 1  # a door\nb: '#'\n-- a lever")] == [(1, "a door"), (3, "a lever")]
    assert WORDS.findall(without_code("`a door` and [a](door.md), no beside-chain; a door")) == [
        "door"
    ]
