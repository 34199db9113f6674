"""CPU time of the gate by folder: limits and measurements.

`tests/budget.json` has the CPU-seconds of each test file of the gate, as last recorded by `make
budget`, and a limit for each folder. Lint fails if a recorded folder exceeds its limit by a
quarter, or if all folders together exceed the gate's. Wall time is not limited.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "budget.json"
MEASURED = ROOT.parent / "build" / "cpu_times.json"
GATE_S = 2_150
"""CPU-seconds for all folders. The goal is 1,750 (decision 44)."""
TOLERANCE = 0.25
"""Share by which a folder may exceed its limit, because CPU time also depends on the machine."""
UNKNOWN_S = 5.0
"""Assumed for a file that is not recorded."""


@cache
def read() -> Mapping[str, Any]:
    """Return `limits` by folder, and `recorded` CPU-seconds by file."""
    return json.loads(FILE.read_text()) if FILE.exists() else {"limits": {}, "recorded": {}}


def recorded(file: Path) -> float:
    """Return the recorded CPU-seconds of a test file."""
    return float(read()["recorded"].get(file.relative_to(ROOT).as_posix(), UNKNOWN_S))


def read_times(path: Path) -> dict[str, float]:
    """Return CPU-seconds by test from the plugin's file."""
    times: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return times


def by_file(cpu_s: Mapping[str, float]) -> dict[str, float]:
    """Sum tests by file below `tests`; time outside files is `(collecting)` or `(ending)`."""
    files: dict[str, float] = defaultdict(float)
    for test, seconds in cpu_s.items():
        files[test.partition("::")[0].removeprefix("tests/")] += seconds
    return {file: round(seconds, 1) for file, seconds in sorted(files.items())}


def by_folder(files: Mapping[str, float]) -> dict[str, float]:
    """Sum files by the first folder below `tests`; files outside folders are `(root)`."""
    folders: dict[str, float] = defaultdict(float)
    for file, seconds in files.items():
        folder = file.partition("/")[0] if "/" in file else "(root)"
        folders[file if file.startswith("(") else folder] += seconds
    return dict(sorted(folders.items()))


def report(cpu_s: Mapping[str, float], wall_s: float) -> str:
    """Return a table of CPU-seconds by folder with their limits; write the figures for `make
    budget`."""
    files = by_file(cpu_s)
    MEASURED.parent.mkdir(exist_ok=True)
    MEASURED.write_text(json.dumps(files, indent=1))
    limits = read()["limits"]
    lines = [
        f"{folder:16} {seconds:8.0f}  of {limits.get(folder, 0):5.0f}"
        for folder, seconds in by_folder(files).items()
    ]
    total = f"{'all':16} {sum(files.values()):8.0f}  of {GATE_S:5.0f}"
    return "\n".join(
        ["\nCPU-seconds by folder", *lines, total, f"{wall_s / 60:.1f} minutes of wall time"]
    )


def problems() -> list[str]:
    """Return the folders, and the total, whose recorded CPU time exceeds the limit."""
    limits, folders = read()["limits"], by_folder(read()["recorded"])
    over = [
        f"tests/{folder}: {seconds:.0f} CPU-s recorded, {limits.get(folder, 0)} allowed"
        for folder, seconds in folders.items()
        if seconds > limits.get(folder, 0) * (1 + TOLERANCE)
    ]
    total = sum(folders.values())
    return over + ([f"the gate: {total:.0f} CPU-s, {GATE_S} allowed"] if total > GATE_S else [])


def record() -> None:
    """Write the last run's figures to the file; the limits stay."""
    times = json.loads(MEASURED.read_text())
    times_by_file = {file: seconds for file, seconds in times.items() if seconds >= 0.05}
    FILE.write_text(
        json.dumps({"limits": read()["limits"], "recorded": times_by_file}, indent=1) + "\n"
    )


if __name__ == "__main__":
    record()
