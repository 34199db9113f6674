"""Measure which tests find the faults: `python -m tests.mutants [--only ID …] [--shard K/N]`.

Each fault is applied alone to a copy of the tracked tree. The gate's tests that import the changed
file run until one fails; where none does, the suite's others do. At the end the tests that failed
run without any fault: one that fails even so finds nothing, and its faults are run again without
it. Rows go to `build/mutants.csv`: faults that have one are not run again, so that the same command
takes up an interrupted run; delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest

from tests.mutants.choice import Choice
from tests.mutants.faults import Fault, read

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "build" / "mutants.csv"
NIGHTLY = "nightly"
"""Marker of the tests that the gate leaves out."""
TIERS = {"gate": f"not {NIGHTLY}", "suite": NIGHTLY}
"""Tests that each verdict is by, as pytest's `-m` takes them."""
SHARE = 0.95
"""Share of the faults found by any test that the gate has to find."""
FIRST_FILES = 2
"""Test files of a fault's first run of pytest; each further run has twice as many."""
TEST_S, ENDING_S = 180, 20
"""Time limits of one test, and of pytest for its fixtures once it is stopped."""
PATIENCE = 12
"""Seconds that a run may last for each CPU-second that it may take."""
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, -signal.SIGXCPU)
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """Result of one fault."""

    id: str
    verdict: str
    """`gate` or `suite`, whose tests find it; `none` of those that ran, which were all that import
    the file; `cap`: their time was over before; `unfair`: a file cannot be collected."""
    test: str
    """Test that finds it."""
    files: str
    """Test files that ran, of those that import the changed file."""
    cpu_s: float


class Runner:
    """Runs tests in one copy of the tree.

    Args:
        cap_s: CPU-seconds of one fault's tests of one tier.
    """

    def __init__(self, tree: Path, cap_s: float) -> None:
        self._tree, self._cap_s = tree, cap_s
        self._choice = Choice(tree)
        self.unsound: set[str] = set()
        """Tests that fail without any fault."""

    def row(self, fault: Fault) -> Row:
        """Run the tests of a fault."""
        began, tests = _cpu_s(), self._choice.of(fault)
        verdict, test, ran = "none", "", 0
        with self._applied(fault):
            for tier, marked in TIERS.items():
                test, ran = self._found(tests, marked)
                if test:
                    verdict = tier if "::" in test else "unfair"
                    break
                if ran < len(tests):
                    verdict = "cap"
        return Row(fault.id, verdict, test, f"{ran}/{len(tests)}", round(_cpu_s() - began, 1))

    def check(self, tests: Iterable[str]) -> None:
        """Find those tests that fail without any fault."""
        if chosen := sorted(test for test in tests if "::" in test):
            self.unsound |= set(self._failing(chosen, [], 100 * self._cap_s))

    def _found(self, tests: Sequence[str], marked: str) -> tuple[str, int]:
        """Return the test that fails, or nothing, and how many files have been tried."""
        until_s, at, count = _cpu_s() + self._cap_s, 0, FIRST_FILES
        without = [f"--deselect={test}" for test in sorted(self.unsound)]
        while at < len(tests) and (left_s := until_s - _cpu_s()) > 1:
            some, at, count = tests[at : at + count], at + count, 2 * count
            if found := self._failing(some, ["-x", "-m", marked, *without], left_s):
                return found[0], min(at, len(tests))
        return "", min(at, len(tests))

    @contextmanager
    def _applied(self, fault: Fault) -> Iterator[None]:
        file = self._tree / fault.file
        text = file.read_text("utf-8")
        file.write_text(fault.applied(text), "utf-8")
        try:
            yield
        finally:
            file.write_text(text, "utf-8")

    def _failing(self, tests: Sequence[str], options: Sequence[str], cpu_s: float) -> list[str]:
        """Run tests; return those that fail, and files that cannot be collected."""
        options = [*options, "-q", "-rfE", "-p", "no:cacheprovider", f"--timeout={TEST_S}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        own = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(self._tree), "COLUMNS": "1000"}
        limit_s = round(cpu_s) + 1
        # Not a pipe, which a process that outlives pytest would keep open.
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                command,
                cwd=self._tree,
                env=os.environ | own,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5)),
            ) as process,
        ):
            try:
                process.wait(PATIENCE * limit_s)
            except subprocess.TimeoutExpired:
                return []
            finally:
                _end(process)
            said.seek(0)
            failed = FAILED.findall(said.read().decode(errors="replace"))
        return failed if failed or process.returncode in PASSED else ["pytest"]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a run of pytest, so that it ends what it has started; then kill what is left."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """Copy the tracked files of a tree, as they are now."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, Path(folder) / name)
        yield Path(folder)


def rows() -> dict[str, Row]:
    """Read the results so far, by fault: the last of each."""
    if not ROWS.exists():
        return {}
    with ROWS.open(newline="") as file:
        found = [Row(**row | {"cpu_s": float(row["cpu_s"])}) for row in csv.DictReader(file)]
    return {row.id: row for row in found}


def add(row: Row) -> None:
    """Append a result."""
    ROWS.parent.mkdir(exist_ok=True)
    is_new = not ROWS.exists()
    with ROWS.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))
    print(*asdict(row).values(), sep="  ", flush=True)


def table(faults: Sequence[Fault], found: dict[str, Row]) -> str:
    """Return the verdicts by room, and the gate's share."""
    kinds = (*TIERS, "none", "cap", "unfair")
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in faults:
        if fault.id in found:
            by_room[fault.room][found[fault.id].verdict] += 1
    whole = sum(by_room.values(), Counter[str]())
    lines = [f"{'room':<22}" + "".join(f"{kind:>8}" for kind in kinds)]
    for room, counts in [*sorted(by_room.items()), ("all", whole)]:
        lines.append(f"{room:<22}" + "".join(f"{counts[kind]:>8}" for kind in kinds))
    share = whole["gate"] / max(1, whole["gate"] + whole["suite"])
    minutes = sum(row.cpu_s for row in found.values()) / 60
    said = f"the gate finds {share:.1%} of what any test finds (at least {SHARE:.0%})"
    return "\n".join([*lines, f"{said}; {minutes:.0f} CPU-minutes"])


def run(faults: Sequence[Fault], tree: Path, cap_s: float, done: Container[str]) -> None:
    """Run the faults that are not done, then the tests that failed without any fault."""
    runner, todo = Runner(tree, cap_s), [fault for fault in faults if fault.id not in done]
    while todo:
        for fault in todo:
            add(runner.row(fault))
        found = rows()
        runner.check({found[fault.id].test for fault in faults} - runner.unsound)
        todo = [fault for fault in faults if found[fault.id].test in runner.unsound]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--only", nargs="+", metavar="ID", help="run these, again if need be")
    parser.add_argument(
        "--shard", default="1/1", metavar="K/N", help="run each N-th, from the K-th"
    )
    parser.add_argument(
        "--cap", type=float, default=90, metavar="S", help="CPU-seconds per fault and tier (90)"
    )
    args = parser.parse_args()
    faults = read()
    if args.list:
        print("\n".join(f"{fault.id:<30} {fault.file}: {fault.breaks}" for fault in faults))
        return 0
    first, step = map(int, args.shard.split("/"))
    done = () if args.only else rows()
    chosen = [fault for fault in faults if fault.id in (args.only or [fault.id])]
    with copied() as tree:
        run(chosen[first - 1 :: step], tree, args.cap, done)
    print(table(faults, rows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
