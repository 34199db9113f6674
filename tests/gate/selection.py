"""Selection of test files for an invocation of pytest.

Only the files of an invocation are collected: importing all test modules takes longer than many of
them run. Files that take the longest come first, so that no process is left alone at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tests import tiers
from tests.gate import budget

ROOT = Path(__file__).parents[1]

COMPUTING, WAITING = 2, 3
"""Test processes for two cores: of tests that compute, and of tests that wait for processes."""

MARKERS = {"check": "not (compiles or processes or browser)", "test": "not nightly", "all": ""}


@dataclass(frozen=True)
class Selection:
    """Tests of one invocation of pytest."""

    name: str
    processes: int
    """Zero: the tests run in pytest's own process."""
    tests: tuple[str, ...]
    """Files, or ids of tests, below the project's root."""
    marker: str
    """Expression for `-m`; empty: all."""
    hook: bool
    """True if jaxtyping checks the shapes of networks."""

    def arguments(self, without_hook: str, list_file: Path) -> list[str]:
        """Return the command line.

        Args:
            list_file: where the names of the files are written, for `tests.gate.files`.
        """
        are_files = not any("::" in test for test in self.tests)
        list_file.write_text("\n".join(self.tests))
        return [
            *("-q", "--numprocesses", str(self.processes), "--dist", "loadscope"),
            "--no-loadscope-reorder",
            *(() if self.hook else ("-o", without_hook)),
            *("-m", self.marker),
            *(
                ("-p", "tests.gate.files", "--files", str(list_file), ".")
                if are_files
                else self.tests
            ),
        ]

    def __str__(self) -> str:
        processes = f"{self.processes} processes" if self.processes else "one process"
        return f"{self.name}: {len(self.tests)} files in {processes}"


def invocations(tier: str, shard: str = "1/1") -> Iterator[Selection]:
    """Yield what a tier runs, in order.

    Args:
        shard: `K/N`: the K-th of N parts.
    """
    files = [file for file in sorted(ROOT.rglob("test_*.py")) if _is_of(file, tier, shard)]
    files.sort(key=budget.recorded, reverse=True)
    computing = [file for file in files if tiers.computes(file.relative_to(ROOT))]
    waiting = [file for file in files if file not in computing]
    alone = [file for file in files if tiers.is_alone(file.relative_to(ROOT))]
    parts = (
        _selection(tier, "computing", COMPUTING, computing, "not alone", hook=True),
        _selection(tier, "waiting", WAITING, waiting, "not alone", hook=False),
        _selection(tier, "alone", 0, alone, "alone", hook=False),
    )
    yield from (part for part in parts if part.tests)


def _selection(
    tier: str, name: str, processes: int, files: list[Path], marker: str, hook: bool
) -> Selection:
    tests = tuple(str(file.relative_to(ROOT.parent)) for file in files)
    both = " and ".join(part for part in (MARKERS[tier], marker) if part)
    return Selection(name, processes, tests, both, hook)


def _is_of(file: Path, tier: str, shard: str) -> bool:
    place, parts = map(int, shard.split("/"))
    path = file.relative_to(ROOT)
    if crc32(path.as_posix().encode()) % parts != place - 1:
        return False
    if tier == "check":
        return not tiers.kinds_of(path)
    return tier == "all" or not tiers.is_nightly(path)
