"""Selection of a tier's tests for each pytest invocation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tests import tiers
from tests.gate.groups import Group, in_groups

ROOT = Path(__file__).parents[1]

WAITING, ALONE = "waiting", "alone"
"""Names of the invocations of tests that mostly wait for other processes, and of tests that run
while no other test does."""
COMPUTING_PROCESSES, WAITING_PROCESSES = 2, 3
"""Number of test processes on two cores for tests that compute, and for tests that wait."""

MARKERS = {"check": "not (compiles or processes or browser)", "test": "not nightly", "all": ""}


@dataclass(frozen=True)
class Selection:
    """Tests of one invocation."""

    name: str
    processes: int
    """Processes that claim groups of the tests."""
    groups: Sequence[Group]
    marker: str
    """Expression for `-m`; empty: all."""
    hook: bool
    """True if jaxtyping checks the shapes of networks, which costs a tenth of the time."""

    def __str__(self) -> str:
        files = {file for group in self.groups for file in group.files}
        return f"{self.name}: {len(files)} files, {self.processes} processes"


def invocations(tier: str, shard: str = "1/1") -> Iterator[Selection]:
    """Yield a tier's invocations in order.

    Args:
        shard: `K/N`: the K-th of N parts.
    """
    files = [file for file in sorted(ROOT.rglob("test_*.py")) if _is_of(file, tier, shard)]
    computing = [file for file in files if tiers.computes(file.relative_to(ROOT))]
    networks = [file for file in computing if file.relative_to(ROOT).parts[0] in tiers.NETWORKS]
    engines = [file for file in computing if file not in networks]
    waiting = [file for file in files if file not in computing]
    alone = [file for file in files if tiers.is_alone(file.relative_to(ROOT))]
    parts = (
        _selection(tier, "networks", COMPUTING_PROCESSES, networks, "not alone", hook=True),
        _selection(tier, "engines", COMPUTING_PROCESSES, engines, "not alone", hook=tier == "all"),
        _selection(tier, WAITING, WAITING_PROCESSES, waiting, "not alone", hook=False),
        _selection(tier, ALONE, 1, alone, "alone", hook=False),
    )
    yield from (part for part in parts if part.groups)


def _selection(
    tier: str, name: str, processes: int, files: list[Path], marker: str, hook: bool
) -> Selection:
    expression = " and ".join(part for part in (MARKERS[tier], marker) if part)
    return Selection(name, processes, in_groups(files), expression, hook)


def _is_of(file: Path, tier: str, shard: str) -> bool:
    index, parts = map(int, shard.split("/"))
    path = file.relative_to(ROOT)
    if crc32(path.as_posix().encode()) % parts != index - 1:
        return False
    if tier == "check":
        return not tiers.kinds_of(path)
    return tier == "all" or not tiers.is_nightly(path)
