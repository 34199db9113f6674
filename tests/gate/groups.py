"""Groups of tests that run in one process, in order.

A group is a test file, or the part of a file that shares fixtures: in `tests/families` a family.
Files of `tiers.GROUPS` form one group, because they share a session fixture.
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
"""The file's tests share what they collect."""


@dataclass(frozen=True)
class Group:
    """Tests that run in one process."""

    files: tuple[str, ...]
    """Test files, relative to the folder that pytest runs in."""
    family: str | None = None
    """Family named by the cases of this part of a file; empty: cases that name no family; None:
    all."""

    def has(self, test: str) -> bool:
        """Whether a test of the group's files is in the group."""
        return self.family is None or self.family == family_of(test)


def in_groups(files: Sequence[Path]) -> list[Group]:
    """Return the groups of test files, longest first."""
    shared = {
        ROOT / file: name for name, group_files in tiers.GROUPS.items() for file in group_files
    }
    groups: dict[Group, float] = {}
    for name in tiers.GROUPS:
        if members := [file for file in files if shared.get(file) == name]:
            groups[_group(members)] = sum(map(budget.recorded, members))
    for file in files:
        if file in shared:
            continue
        families = (*_families(), "") if _is_split(file) else (None,)
        for family in families:
            groups[_group([file], family)] = budget.recorded(file) / len(families)
    return sorted(groups, key=lambda group: groups[group], reverse=True)


def family_of(test: str) -> str:
    """Return the family that a test's case names, or ""."""
    _, _, case = test.partition("[")
    return max(
        (family for family in _families() if re.search(rf"(^|[-, ]){family}", case)),
        key=len,
        default="",
    )


def _group(files: Iterable[Path], family: str | None = None) -> Group:
    return Group(tuple(str(file.relative_to(ROOT.parent)) for file in files), family)


def _is_split(file: Path) -> bool:
    path = file.relative_to(ROOT)
    return path.parts[0] == "families" and path.as_posix() != MATRIX


@cache
def _families() -> tuple[str, ...]:
    suite = ROOT / "families" / "suite"
    return tuple(file.stem for file in suite.glob("*.py") if file.stem not in ("__init__", "entry"))
