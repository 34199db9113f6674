"""Choice of tests for a fault: those that import the changed file, the closest and cheapest first.

The import graph is static: imports anywhere in a source, and module names in strings of the tested
code. A test also imports what the `conftest.py` of its folders imports, except the root's. A file
that is not a module counts as imported by sources that name it, by sources of its folder, and by
the tests of the mirrored folder.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path, PurePosixPath

from tests.mutants.faults import Fault

ROOMS = ("deploy", "models", "service", "tests", "tools", "workers")
MAIN = "atelier.py"
SELF = "tests/mutants/"
"""Tests of the faults themselves, which fail with every fault."""
BUDGET = "tests/budget.json"
"""CPU-seconds of test files by folder and file, if recorded."""
MAX_LIKENESS = 3.0
"""Maximum weight of shared words, measured in imports."""
WORD = re.compile(r"[a-z]{4,}")
NAME = re.compile(r"\.?\w+(?:\.\w+)+")


class Choice:
    """Chooses tests of one tree."""

    def __init__(self, root: Path) -> None:
        paths = (path for room in ROOMS for path in (root / room).rglob("*.py"))
        files = [path.relative_to(root).as_posix() for path in (root / MAIN, *paths)]
        self._files = {_module(file): file for file in files if not file.startswith(SELF)}
        self._texts = {file: (root / file).read_text("utf-8") for file in self._files.values()}
        self._imports = {
            file: {target for name in _names(text, file) if (target := self._known(name))}
            for file, text in self._texts.items()
        }
        self._importers: dict[str, set[str]] = defaultdict(set)
        for file, imported in self._imports.items():
            for target in imported:
                self._importers[target].add(file)
        self._costs = _costs(root / BUDGET)
        self._words = {file: _words(self._texts[file]) for file in filter(_is_test, self._texts)}
        self._frequencies = Counter(word for words in self._words.values() for word in words)

    def of(self, fault: Fault) -> list[str]:
        """Return the test files that import a fault's file, in the order to run them."""
        distances = _distances(self._seeds(fault.file), self._importers)
        tests = filter(_is_test, distances)
        return sorted(tests, key=lambda test: self._rank(test, fault, distances[test]))

    def _known(self, name: str) -> str | None:
        """Return the file of a dotted name's module, or of the module that contains the name."""
        while name:
            if name in self._files:
                return self._files[name]
            name = name.rpartition(".")[0]
        return None

    def _seeds(self, changed: str) -> dict[str, int]:
        """Return the files to start from, with their distance from the change."""
        if changed in self._texts:
            return {changed: 0}
        path = PurePosixPath(changed)
        mirrored = [f"tests/{folder}/" for folder in path.parents[:-1]]
        tests = next(filter(None, map(self._below, mirrored)), [])
        siblings = [file for file in self._texts if PurePosixPath(file).parent == path.parent]
        naming = [file for file, text in self._texts.items() if path.name in text]
        return dict.fromkeys(tests, 2) | dict.fromkeys(siblings, 1) | dict.fromkeys(naming, 0)

    def _below(self, folder: str) -> list[str]:
        return [file for file in self._texts if file.startswith(folder)]

    def _rank(self, test: str, fault: Fault, distance: int) -> tuple[float, float, str]:
        """Return a test's sort key: distance by imports, folder, name and words, then cost.

        Without a recorded cost, the number of files that the test reaches is used.
        """
        test_path, other = PurePosixPath(test), PurePosixPath(fault.file)
        pairs = zip(test_path.parts[1:-1], other.parts[:-1], strict=False)
        mirrored = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        mirrored += (test_path.parts[1], other.parts[0]) == ("parity", "models")
        test_words = test_path.stem.split("_")[1:]
        named = sum(_shares_a_word(test_words, part) for part in (other.stem, other.parent.name))
        if test not in self._costs:
            self._costs[test] = len(_distances({test: 0}, self._imports))
        alike = min(self._likeness(test, fault), MAX_LIKENESS)
        return round(distance - mirrored - named - alike), self._costs[test], test

    def _likeness(self, test: str, fault: Fault) -> float:
        """Return how many rare words of the changed text a test has; 1 for a word of no other
        test."""
        shared = _words(f"{fault.id} {fault.before}") & self._words[test]
        count = len(self._words)
        return sum(1 - math.log(self._frequencies[word]) / math.log(count + 1) for word in shared)


def _is_test(file: str) -> bool:
    return PurePosixPath(file).name.startswith("test_")


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


def _distances(seeds: Mapping[str, int], edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the number of edges between each file and the nearest seed."""
    distances = dict(sorted(seeds.items(), key=lambda item: item[1]))
    line = deque(distances)
    while line:
        file = line.popleft()
        for other in sorted(edges.get(file, set()) - distances.keys()):
            distances[other] = distances[file] + 1
            line.append(other)
    return distances


def _shares_a_word(test_words: Iterable[str], part: str) -> bool:
    """Return whether the test's name and the file's share a word, ignoring a plural s."""
    words = {word.removesuffix("s") for word in part.split("_")}
    return not words.isdisjoint(word.removesuffix("s") for word in test_words)


def _module(file: str) -> str:
    parts = PurePosixPath(file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names(text: str, file: str) -> Iterator[str]:
    """Yield the dotted names that a source may import."""
    is_test = file.startswith("tests/")
    package = ".".join(PurePosixPath(file).parts[:-1])
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(text_)) if not is_test and NAME.fullmatch(text_):
                yield package + text_ if text_.startswith(".") else text_
    if is_test and not file.endswith("/conftest.py"):
        folders = PurePosixPath(file).parents[:-2]
        yield from (f"{'.'.join(folder.parts)}.conftest" for folder in folders)


def _costs(path: Path) -> dict[str, float]:
    """Read the recorded costs by file; empty if none are recorded."""
    if not path.exists():
        return {}
    folders = json.loads(path.read_text("utf-8"))
    costs = (
        (f"{folder}/{file}", cost)
        for folder, files in folders.items()
        for file, cost in files.items()
    )
    return {f"tests/{file.removeprefix('tests/')}": cost for file, cost in costs}
