"""Groups of tests that run in one process, in their order.

A group is a test file, or a part of one that shares fixtures: in `tests/families` a family. Files
of `tiers.GROUPS` are one group, because they share what a fixture of the session makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import tiers
from tests.gate import budget

ROOT = Path(__file__).parents[1]
MATRIX = "families/test_matrix.py"
"""Its tests share what they collect."""


@dataclass(frozen=True)
class Group:
    """Tests that run in one process."""

    files: tuple[str, ...]
    """Relative to the folder that pytest runs in."""
    family: str | None = None
    """Of a file's tests, those whose case names this family; empty: those that name none."""

    def has(self, test: str) -> bool:
        """Return whether a test of the files, by its name, is in the group."""
        return self.family is None or self.family == family_of(test)


def in_groups(files: Sequence[Path]) -> list[Group]:
    """Return the groups of test files. Those come first that take the longest."""
    shared = {ROOT / file: name for name, of in tiers.GROUPS.items() for file in of}
    groups: dict[Group, float] = {}
    for name in tiers.GROUPS:
        if together := [file for file in files if shared.get(file) == name]:
            groups[_group(together)] = sum(map(budget.recorded, together))
    for file in files:
        if file in shared:
            continue
        families = (*_families(), "") if _is_split(file) else (None,)
        for family in families:
            groups[_group([file], family)] = budget.recorded(file) / len(families)
    return sorted(groups, key=lambda group: groups[group], reverse=True)


def family_of(test: str) -> str:
    """Return the family that a test's case names, or an empty text."""
    _, _, case = test.partition("[")
    return max((f for f in _families() if re.search(rf"(^|[-, ]){f}", case)), key=len, default="")


def _group(files: Iterable[Path], family: str | None = None) -> Group:
    return Group(tuple(str(file.relative_to(ROOT.parent)) for file in files), family)


def _is_split(file: Path) -> bool:
    path = file.relative_to(ROOT)
    return path.parts[0] == "families" and path.as_posix() != MATRIX


@cache
def _families() -> tuple[str, ...]:
    suite = ROOT / "families" / "suite"
    return tuple(file.stem for file in suite.glob("*.py") if file.stem not in ("__init__", "entry"))
