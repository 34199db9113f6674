"""Distribution of tests over processes: the tests of a group run in one process, in their order.

A group is a test file, or a part of one that shares fixtures: in `tests/families` a family. Files
of `tiers.GROUPS` are one group, because they share a running system.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

from tests import tiers

ROOT = Path(__file__).parents[1]
MATRIX = "families/test_matrix.py"
"""Its tests share what they collect."""


class GroupScheduling(LoadScopeScheduling):
    """Scheduler for pytest-xdist."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test."""
        return group(nodeid)


def group(nodeid: str) -> str:
    """Return the group of a test, by its id."""
    file, _, name = nodeid.partition("::")
    path = file.removeprefix("tests/")
    for shared, files in tiers.GROUPS.items():
        if path in files:
            return shared
    return f"{path} {_family(name)}" if path.startswith("families/") and path != MATRIX else path


def _family(name: str) -> str:
    """Return the family that a test's case names, or an empty text."""
    _, _, case = name.partition("[")
    return max((f for f in _families() if re.search(rf"(^|[-, ]){f}", case)), key=len, default="")


@cache
def _families() -> tuple[str, ...]:
    suite = ROOT / "families" / "suite"
    return tuple(file.stem for file in suite.glob("*.py") if file.stem not in ("__init__", "entry"))
